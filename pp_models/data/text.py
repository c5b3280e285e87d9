"""Counts from raw text: one document a line (`.docs`, also gzipped), a folder of `.txt` files, or
a column of a table.

    data = text.read("speeches.docs", min_df=5, max_df=0.5)
    data = text.read("speeches.csv", text_column="speech", id_column="speaker")
    data = text.count(["A cat sat.", "The mat."])               # documents in memory

Words are runs of at least two letters, in lower case, with apostrophes between letters. Stop words
and words that too few or too many documents use are left out. The vocabulary is sorted. If a
vocabulary lies beside a `.docs` file (see `readers`) and no options are given, exactly its words
are counted, so held-out documents have the columns of the fitted ones. Files are read twice, first
for the vocabulary. A scikit-learn `CountVectorizer` may do all of this instead (`vectoriser=`).
"""

import collections
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from pp_models.data import frames
from pp_models.data.formats import opening, readers, tables
from pp_models.data.types import Data, count_matrix, counts
from pp_models.errors import InputError, unknown

SUFFIX = ".docs"
DOCUMENTS_TOGETHER = 1 << 12
_MATRICES = tuple({*readers.KNOWN_SUFFIXES, ".h5ad"} - {".txt", ".csv", ".tsv"})
_ENGLISH = """
about above after again against all also am an and any are as at be because been before being below
between both but by can could did do does doing down during each either else ever every few for from
further get had has have having he her here hers herself him himself his how however if in into is
it its itself just let may me might more most much must my myself neither no nor not now of off on
once one only or other ought our ours ourselves out over own per same shall she should since so some
such than that the their theirs them themselves then there these they this those through thus to too
under until up upon us very was we were what when where whether which while who whom whose why will
with within without would yet you your yours yourself yourselves ain't aren't can't couldn't didn't
doesn't don't hadn't hasn't haven't he'd he'll he's here's i'd i'll i'm i've isn't it'll it's let's
mustn't she'd she'll she's shouldn't that's there's they'd they'll they're they've wasn't we'd we'll
we're we've weren't what's where's who's won't wouldn't you'd you'll you're you've
"""
STOP_WORDS = frozenset(_ENGLISH.split())
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


class Options(NamedTuple):
    """How words are counted.

    stop_words:      a list of words, a file with one a line, "english" (a short list) or "none"
    min_df, max_df:  fewest and most documents that use a word: a number (int) or a share (float)
    vocabulary:      count exactly these words, in this order
    vectoriser:      a scikit-learn CountVectorizer to use instead, fitted or not
    """

    stop_words: Any = "english"
    min_df: int | float = 1
    max_df: int | float = 1.0
    vocabulary: Any = None
    vectoriser: Any = None


def is_text(path: str | Path) -> bool:
    """Whether a path is raw text: a .docs file, or a folder of .txt files without counts."""
    path = opening.usable(path)
    if not path.is_dir():
        return path.name.lower().removesuffix(".gz").endswith(SUFFIX)
    names = [file.name.lower().removesuffix(".gz") for file in path.iterdir()]
    other = any(name.endswith(_MATRICES) or name.startswith("docword.") for name in names)
    return bool(_files(path)) and not other


def read(path: str | Path, **options: Any) -> Data:
    """The documents of a file or folder as counts. Options: those of `blocks`."""
    matrices, columns, rows = blocks(path, **options)
    with opening.reading(Path(path)):
        return counts(_stacked(matrices), columns, rows)


def count(documents: Any, row_names: Any = None, **options: Any) -> Data:
    """Documents in memory as counts. Options: those of `Options`.

    documents: a list or Series of strings, or a table with a column of them, whose index names
    the rows; see `pp_models.data.from_table` for one with several
    """
    found, names = frames.texts_of(documents)
    matrices, columns = _counted(lambda: iter(found), _checked(options))
    row_names = names if row_names is None else row_names
    return counts(_stacked(matrices), column_names=columns, row_names=row_names)


def blocks(
    path: str | Path, text_column: str | None = None, id_column: str | None = None, **options: Any
) -> tuple[Iterator[Any], Any, Any]:
    """Matrices of counts of some documents at a time, the vocabulary, and names or None.

    text_column, id_column: of a csv, tsv, Parquet or Arrow table, which texts are counted and what
    names the rows. options: those of `Options`
    """
    path, chosen = opening.usable(path), _checked(options)
    if text_column is None and id_column is not None:
        fix = "name the column of texts, too (--text-column, in Python text_column)"
        raise InputError(f"{path}: {id_column!r} names the rows of texts: {fix}.")
    if path.is_dir():
        rows: tuple[str, ...] | None = tuple(file.stem for file in _files(path))
    else:
        path = opening.existing(path)
        beside = readers.names(path)
        rows = beside.rows
        if not options and beside.columns is not None:
            chosen = chosen._replace(vocabulary=beside.columns)
    if text_column is None:
        with opening.reading(path):
            return *_counted(lambda: documents(path), chosen), rows
    if not tables.is_table(path):
        fix = "only csv, tsv, Parquet and Arrow tables have columns of texts: leave it out"
        raise InputError(f"{path} is no table with a column {text_column!r}: {fix}.")
    if id_column is not None:
        rows = tuple(map(str, tables.texts(path, id_column)))
    with opening.reading(path):
        return *_counted(lambda: _column(path, text_column), chosen), rows


def _column(path: Path, name: str) -> Iterator[str]:
    for number, document in enumerate(tables.texts(path, name), 1):
        if not isinstance(document, str):
            told = f"document {number} of the column {name!r} is {document!r}, not a text"
            opening.fail(path, f"{told}: drop that row, or write an empty text")
        yield document


def documents(path: Path) -> Iterator[str]:
    """The documents of a file or folder, in order."""
    if path.is_dir():
        if not (files := _files(path)):
            fix = "name a folder with a file for each document"
            raise InputError(f"{path}: there are no .txt files in the folder: {fix}.")
        for file in files:
            with opening.reading(file):
                yield _decoded(file, b"".join(opening.lines(file)), 1)
        return
    with opening.reading(path):
        for number, line in enumerate(opening.lines(path), 1):
            yield _decoded(path, line, number)


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.iterdir())
    return [file for file in files if file.suffix.lower() == ".txt" and file.is_file()]


def _decoded(path: Path, raw: bytes, first: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        what = f"byte {raw[error.start]:#04x} is not UTF-8"
        opening.fail(path, f"{what}: save the text again in that encoding, all of it", error, line)


def words(document: str) -> list[str]:
    """The words of a document, in order."""
    plain = unicodedata.normalize("NFC", document.lower().replace("’", "'"))
    return [word for word in _WORD.findall(plain) if len(word) > 1]


def _counted(again: Callable[[], Iterator[str]], options: Options) -> tuple[Iterator[Any], Any]:
    """Blocks of counts, and the vocabulary. `again` restarts the documents."""
    if options.vectoriser is not None:
        return _by_vectoriser(again(), options.vectoriser)
    given = options.vocabulary
    vocabulary = _vocabulary(again(), options) if given is None else tuple(map(str, given))
    columns = {word: column for column, word in enumerate(vocabulary)}
    if len(columns) < len(vocabulary):
        repeated = collections.Counter(vocabulary).most_common(1)[0][0]
        raise InputError(f"The vocabulary holds {repeated!r} more than once: keep one of them.")
    return _matrices(again(), columns), vocabulary


def _vocabulary(found: Iterator[str], options: Options) -> tuple[str, ...]:
    stop_words = _stop_words(options.stop_words)
    using: collections.Counter[str] = collections.Counter()
    number = 0
    for document in found:
        number += 1
        using.update(set(words(document)))
    if number == 0:
        raise InputError("There are no documents: write one a line.")
    limits = options.min_df, options.max_df
    fewest, most = (limit if isinstance(limit, int) else limit * number for limit in limits)
    common = (word for word, uses in using.items() if fewest <= uses <= most)
    if kept := tuple(sorted(word for word in common if word not in stop_words)):
        return kept
    left = f"No word is left of {len(using)} in {number} document(s) with min_df {limits[0]}"
    raise InputError(f"{left} and max_df {limits[1]}: allow for more words.")


def _matrices(found: Iterator[str], columns: dict[str, int]) -> Iterator[Any]:
    while chunk := list(itertools.islice(found, DOCUMENTS_TOGETHER)):
        using = [[columns[word] for word in words(text) if word in columns] for text in chunk]
        rows = np.repeat(np.arange(len(chunk)), [len(found) for found in using])
        tokens = np.fromiter(itertools.chain.from_iterable(using), np.int64, len(rows))
        entries = np.ones(len(rows), np.int64), (rows, tokens)
        yield count_matrix(scipy.sparse.coo_array(entries, shape=(len(chunk), len(columns))))


def _by_vectoriser(found: Iterator[str], vectoriser: Any) -> tuple[Iterator[Any], tuple[str, ...]]:
    try:
        fitted = hasattr(vectoriser, "vocabulary_")
        matrix = vectoriser.transform(found) if fitted else vectoriser.fit_transform(found)
        names = tuple(map(str, vectoriser.get_feature_names_out()))
    except InputError:
        raise
    except AttributeError as error:
        told = f"this {type(vectoriser).__name__} does not"
        like = "A vectoriser must work like scikit-learn's CountVectorizer"
        raise InputError(f"{like}, and {told}.") from error
    except ValueError as error:
        told = f"The vectoriser found no words to count ({opening.reason(error)})"
        raise InputError(f"{told}: change its settings.") from error
    return iter([count_matrix(matrix)]), names


def _stacked(matrices: Iterator[Any]) -> Any:
    return scipy.sparse.vstack(list(matrices), format="csr")


def _checked(options: dict[str, Any]) -> Options:
    for name in options:
        if name not in Options._fields:
            raise unknown("option for text", name, Options._fields)
    chosen = Options(**options)
    for name in ("min_df", "max_df"):
        value = getattr(chosen, name)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not whole and not (isinstance(value, float) and 0 <= value <= 1):
            limits = "a number of documents from 1 on, or a share from 0.0 to 1.0"
            raise InputError(f"{name} must be {limits}, not {value!r}.")
    if isinstance(chosen.vocabulary, str) or not isinstance(chosen.vocabulary, Iterable | None):
        raise InputError(f"vocabulary must be a list of words, not {chosen.vocabulary!r}.")
    if not isinstance(chosen.stop_words, Iterable | Path):
        known = "a list of words, a file of them, 'english' or 'none'"
        raise InputError(f"stop_words must be {known}, not {chosen.stop_words!r}.")
    return chosen


def _stop_words(given: Any) -> frozenset[str]:
    if isinstance(given, str | Path):
        if str(given) in ("english", "none"):
            return STOP_WORDS if given == "english" else frozenset()
        if not Path(given).is_file():
            told = f"Stop words {str(given)!r} are neither 'english' nor 'none' nor a file"
            raise InputError(f"{told}: write a file with one a line.")
        given = readers.read_names(Path(given))
    return frozenset(word.strip().lower() for word in given)
