"""Counts from raw text: one document a line (`.docs`, also gzipped), or a folder of `.txt` files, one document each.

    data = text.read("speeches.docs", min_df=5, max_df=0.5)
    data = text.count(["A cat sat.", "The mat."])               # documents that are in memory already

Words are runs of letters, apostrophes between letters included, in lower case and at least two letters long; stop words are left out, and so are
words that too few or too many documents use. The vocabulary is sorted. Where a vocabulary lies beside a `.docs` file (see `readers`) and no options
are given, its words are counted, in its order, and no others: so are held-out documents counted as those that were fitted. Files are read twice,
first for the vocabulary, so that memory holds the vocabulary and a block of documents. A scikit-learn `CountVectorizer` may do all of this instead
(`vectoriser=`).
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

from pp_models.data.formats import opening, readers
from pp_models.data.types import Data, count_matrix, counts
from pp_models.errors import InputError, unknown

SUFFIX = ".docs"
DOCUMENTS_TOGETHER = 1 << 12
_MATRICES = tuple(
    suffix
    for suffix in (*readers.KNOWN_SUFFIXES, ".h5ad")
    if suffix not in (".txt", ".csv", ".tsv")
)  # a table may describe the documents
_ENGLISH = """
about above after again against all also am an and any are as at be because been before being below between both but by can could did do does doing
down during each either else ever every few for from further get had has have having he her here hers herself him himself his how however if in into
is it its itself just let may me might more most much must my myself neither no nor not now of off on once one only or other ought our ours
ourselves out over own per same shall she should since so some such than that the their theirs them themselves then there these they this those
through thus to too under until up upon us very was we were what when where whether which while who whom whose why will with within without would
yet you your yours yourself yourselves ain't aren't can't couldn't didn't doesn't don't hadn't hasn't haven't he'd he'll he's here's i'd i'll i'm
i've isn't it'll it's let's mustn't she'd she'll she's shouldn't that's there's they'd they'll they're they've wasn't we'd we'll we're we've weren't
what's where's who's won't wouldn't you'd you'll you're you've
"""
STOP_WORDS = frozenset(_ENGLISH.split())
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


class Options(NamedTuple):
    """How words are counted.

    stop_words:      words to leave out: a list of them, the path of a file with one a line, "english" (ours, a short list) or "none"
    min_df, max_df:  leave out words that fewer or more documents use: a number of documents (int) or a share of all (float)
    vocabulary:      count these words, in this order, and no others
    vectoriser:      a scikit-learn CountVectorizer, or the like, to do all of this instead; one that was fitted already keeps its vocabulary
    """

    stop_words: Any = "english"
    min_df: int | float = 1
    max_df: int | float = 1.0
    vocabulary: Any = None
    vectoriser: Any = None


def is_text(path: str | Path) -> bool:
    """Whether a path names raw text: by its suffix, or because it is a folder of .txt files, other than those beside a file of counts."""
    path = opening.usable(path)
    if not path.is_dir():
        return path.name.lower().removesuffix(".gz").endswith(SUFFIX)
    beside = (file.name.lower().removesuffix(".gz") for file in path.iterdir())
    return bool(_files(path)) and not any(
        name.endswith(_MATRICES) or name.startswith("docword.") for name in beside
    )


def read(path: str | Path, **options: Any) -> Data:
    """The documents of a file or folder as counts. Options: those of `Options`."""
    matrices, columns, rows = blocks(path, **options)
    try:
        return counts(_stacked(matrices), column_names=columns, row_names=rows)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def count(documents: Iterable[str], row_names: Any = None, **options: Any) -> Data:
    """Documents in memory as counts. Options: those of `Options`."""
    documents = list(documents)
    bad = next((i for i, document in enumerate(documents) if not isinstance(document, str)), None)
    if bad is not None:
        raise InputError(
            f"Document {bad} is {type(documents[bad]).__name__}, not a string: decode it first."
        )
    matrices, columns = _counted(lambda: iter(documents), _checked(options))
    return counts(_stacked(matrices), column_names=columns, row_names=row_names)


def blocks(
    path: str | Path, **options: Any
) -> tuple[Iterator[Any], tuple[str, ...], tuple[str, ...] | None]:
    """The same, some documents at a time: matrices of counts, the vocabulary, and the documents' names, if they have any."""
    path, chosen = opening.usable(path), _checked(options)
    if path.is_dir():
        rows: tuple[str, ...] | None = tuple(file.stem for file in _files(path))
    else:
        path = opening.existing(path)
        beside = readers.names(path)
        rows = beside.rows
        if not options and beside.columns is not None:
            chosen = chosen._replace(vocabulary=beside.columns)
    try:
        matrices, columns = _counted(lambda: documents(path), chosen)
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path}: {error}") from error
    return matrices, columns, rows


def documents(path: Path) -> Iterator[str]:
    """The documents of a file or folder, in order."""
    if path.is_dir():
        if not (files := _files(path)):
            raise InputError(
                f"{path}: there are no .txt files in the folder: name one with a file for each document."
            )
        for file in files:
            with opening.explained(file), opening.open_text(file) as stream:
                yield _decoded(file, stream.read(), 1)
        return
    with opening.explained(path), opening.open_text(path) as stream:
        for number, line in enumerate(opening.lines(path, stream), 1):
            yield _decoded(path, line, number)


def _files(folder: Path) -> list[Path]:
    return sorted(
        file for file in folder.iterdir() if file.suffix.lower() == ".txt" and file.is_file()
    )


def _decoded(path: Path, raw: bytes, first: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        opening.fail(
            path,
            f"byte {raw[error.start]:#04x} is not UTF-8: save the text again in that encoding, all of it",
            error,
            line,
        )


def words(document: str) -> list[str]:
    """The words of a document, in order."""
    plain = unicodedata.normalize("NFC", document.lower().replace("’", "'"))
    return [word for word in _WORD.findall(plain) if len(word) > 1]


def _counted(
    again: Callable[[], Iterator[str]], options: Options
) -> tuple[Iterator[Any], tuple[str, ...]]:
    """Blocks of counts, and the vocabulary. `again` begins the documents anew."""
    if options.vectoriser is not None:
        return _by_vectoriser(again(), options.vectoriser)
    vocabulary = (
        tuple(map(str, options.vocabulary))
        if options.vocabulary is not None
        else _vocabulary(again(), options)
    )
    if len(set(vocabulary)) < len(vocabulary):
        repeated = next(
            word for word, number in collections.Counter(vocabulary).items() if number > 1
        )
        raise InputError(f"The vocabulary holds {repeated!r} more than once: keep one of them.")
    return _matrices(again(), {word: column for column, word in enumerate(vocabulary)}), vocabulary


def _vocabulary(found: Iterator[str], options: Options) -> tuple[str, ...]:
    stop_words = _stop_words(options.stop_words)
    using: collections.Counter[str] = collections.Counter()
    number = 0
    for document in found:
        number += 1
        using.update(set(words(document)))
    if number == 0:
        raise InputError("There are no documents: write one a line.")
    fewest, most = (
        share if isinstance(share, int) else share * number
        for share in (options.min_df, options.max_df)
    )
    kept = sorted(
        word for word, uses in using.items() if fewest <= uses <= most and word not in stop_words
    )
    if not kept:
        raise InputError(
            f"No word is left of {len(using)} in {number} document(s) with min_df {options.min_df} and max_df {options.max_df}: allow for more words."
        )
    return tuple(kept)


def _matrices(found: Iterator[str], columns: dict[str, int]) -> Iterator[Any]:
    while chunk := list(itertools.islice(found, DOCUMENTS_TOGETHER)):
        using = [
            [columns[word] for word in words(document) if word in columns] for document in chunk
        ]
        rows = np.repeat(np.arange(len(chunk)), [len(found) for found in using])
        tokens = np.fromiter(itertools.chain.from_iterable(using), np.int64, len(rows))
        yield count_matrix(
            scipy.sparse.coo_array(
                (np.ones(len(rows), np.int64), (rows, tokens)), shape=(len(chunk), len(columns))
            )
        )


def _by_vectoriser(found: Iterator[str], vectoriser: Any) -> tuple[Iterator[Any], tuple[str, ...]]:
    try:
        matrix = (
            vectoriser.transform(found)
            if hasattr(vectoriser, "vocabulary_")
            else vectoriser.fit_transform(found)
        )
        names = tuple(map(str, vectoriser.get_feature_names_out()))
    except InputError:
        raise
    except AttributeError as error:
        raise InputError(
            f"A vectoriser must work like scikit-learn's CountVectorizer, and this {type(vectoriser).__name__} does not."
        ) from error
    except ValueError as error:
        raise InputError(
            f"The vectoriser found no words to count ({opening.reason(error)}): change its settings."
        ) from error
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
            raise InputError(
                f"{name} must be a number of documents from 1 on, or a share from 0.0 to 1.0, not {value!r}."
            )
    if isinstance(chosen.vocabulary, str) or not isinstance(chosen.vocabulary, Iterable | None):
        raise InputError(f"vocabulary must be a list of words, not {chosen.vocabulary!r}.")
    if not isinstance(chosen.stop_words, Iterable | Path):
        raise InputError(
            f"stop_words must be a list of words, a file of them, 'english' or 'none', not {chosen.stop_words!r}."
        )
    return chosen


def _stop_words(given: Any) -> frozenset[str]:
    if isinstance(given, str | Path):
        if str(given) in ("english", "none"):
            return STOP_WORDS if given == "english" else frozenset()
        if not Path(given).is_file():
            raise InputError(
                f"Stop words {str(given)!r} are neither 'english' nor 'none' nor a file: write a file with one a line."
            )
        given = readers.read_names(Path(given))
    return frozenset(word.strip().lower() for word in given)
