"""Laws of `pp_models.data.formats.readers`: every format gives back the matrix that others wrote,
and bad files give one clear sentence.
"""

import contextlib
import gzip
import io
import os
import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pp_models.data import counts
from pp_models.data.formats import matrices, numbers, opening, readers, writers
from pp_models.errors import InputError

COUNTS = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 12, 0, 3], [1, 0, 0, 130]])


# Writers, straight from the formats' definitions --------------------------------------------------


def ldac(X):
    return "".join(
        f"{np.count_nonzero(row)}" + "".join(f" {v}:{row[v]}" for v in np.flatnonzero(row)) + "\n"
        for row in X
    ).encode()


def triples(X, base=0, mark=" "):
    return "".join(
        f"{d + base}{mark}{v + base}{mark}{X[d, v]}\n" for d, v in np.argwhere(X)
    ).encode()


def uci(X):
    return f"{X.shape[0]}\n{X.shape[1]}\n{np.count_nonzero(X)}\n".encode() + triples(X, base=1)


def market(X, **options):
    file = io.BytesIO()
    scipy.io.mmwrite(file, X, **options)
    return file.getvalue()


def npy(X):
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


def npz(X):
    file = io.BytesIO()
    scipy.sparse.save_npz(file, X)
    return file.getvalue()


FORMATS = {
    "x.npz": lambda X: npz(scipy.sparse.csr_array(X)),
    "csc.npz": lambda X: npz(scipy.sparse.csc_matrix(X.astype(float))),
    "coo.npz": lambda X: npz(scipy.sparse.coo_array(X)),
    "x.npy": npy,
    "swapped.npy": lambda X: npy(np.asfortranarray(X.astype(">i4"))),
    "x.mtx": lambda X: market(
        scipy.sparse.coo_array(X), comment="written by a test\nof the reader"
    ),
    "real.mtx": lambda X: market(scipy.sparse.coo_array(X.astype(float)), symmetry="general"),
    "array.mtx": market,
    "x.ldac": ldac,
    "X.DAT": ldac,
    "x.txt": ldac,
    "docword.x.txt": uci,
    "sniffed.txt": uci,
    "x.csv": lambda X: triples(X, mark=","),
    "header.csv": lambda X: b"document,word id,count\n" + triples(X, mark=", "),
    "windows.csv": lambda X: (
        b"\xef\xbb\xbf" + triples(X, mark=";").replace(b"\n", b"\r\n") + b"\r\n"
    ),
    "floats.csv": lambda X: "".join(
        f"{d:.18e},{v:.18e},{X[d, v]:.18e}\n" for d, v in np.argwhere(X)
    ).encode(),
    "x.tsv": lambda X: triples(X, mark="\t"),
}
TEXT = [name for name in FORMATS if not name.endswith((".npz", ".npy"))]


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def fails(path, *parts):
    """Reading fails with one sentence that names the file and these parts."""
    with pytest.raises(InputError) as caught:
        readers.read(path)
    message = str(caught.value)
    for part in (os.path.basename(path), *parts):
        assert part in message
    assert message.endswith(".") and "\n" not in message


# What was written is read -------------------------------------------------------------------------


def in_blocks(path):
    parts = list(readers.blocks(path))
    width = max(part.shape[1] for part in parts)
    for part in parts:
        assert part.data.dtype == np.float32 and part.has_canonical_format
        part.resize(part.shape[0], width)
    return scipy.sparse.vstack(parts).toarray()


@pytest.mark.parametrize("name", FORMATS)
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    together=st.sampled_from([1, 2, 7, 10**5]),
)
def test_round_trip(tmp_path, name, seed, rows, columns, together):
    """What others wrote is read, whole and in blocks of any size, gzipped or not, with or without
    an end of the last line.
    """
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2000, (rows, columns)) * rng.integers(0, 2, (rows, columns))
    X[-1, -1] = 7
    content = FORMATS[name](X)
    texts = {
        name: content,
        f"{name}.gz": gzip.compress(content),
        f"b{name}": gzip.compress(content),
        f"c{name}": content.rstrip(),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "LINES_TOGETHER", together)
        patch.setattr(readers, "ROWS_TOGETHER", together)
        patch.setattr(matrices, "BLOCK_CELLS", together)
        for file, raw in (
            texts.items() if name in TEXT and not name.startswith("docword") else [(name, content)]
        ):
            data = readers.read(path := write(tmp_path, file, raw))
            assert data.kind == "counts" and data.column_names is None
            np.testing.assert_array_equal(data.matrix.toarray(), X)
            np.testing.assert_array_equal(in_blocks(path), X)


def test_symmetric_and_pattern_matrix_market(tmp_path):
    """A symmetric file stores half of the matrix; all of it is read. A pattern file holds ones."""
    X = COUNTS + COUNTS.T
    for matrix in (X, scipy.sparse.coo_array(X)):
        content = market(matrix, symmetry="symmetric")
        assert b"symmetric" in content
        found = readers.read(write(tmp_path, "x.mtx", content))
        np.testing.assert_array_equal(found.matrix.toarray(), X)
    content = b"%%MatrixMarket matrix coordinate pattern general\n%\n\n2 3 2\n1 3\n2 1\n"
    found = readers.read(write(tmp_path, "x.mtx", content))
    np.testing.assert_array_equal(found.matrix.toarray(), [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize("end", [b"0z\xfeN\0\n3\n4\n", b"0\n3\n4\xfe\xff", b"0\n3\n4z"])
def test_matrix_market_that_scipy_would_read_past_the_end_of(tmp_path, end):
    """SciPy 1.17 looks for the end of a line beyond a null byte and beyond the file."""
    path = write(tmp_path, "x.mtx", ARRAY + b"2 2\n1\n" + end)
    with contextlib.suppress(InputError):
        assert readers.read(path).total == 8


def test_repeated_entries_are_added(tmp_path):
    """Entries listed more than once are added up."""
    np.testing.assert_array_equal(
        readers.read(write(tmp_path, "x.csv", b"0,0,1\n0,1,2\n0,0,4\n")).matrix.toarray(), [[5, 2]]
    )


# Vocabularies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [
        ("x.npz", "vocab.txt"),
        ("x.ldac", "x.vocab"),
        ("docword.x.txt.gz", "vocab.x.txt"),
    ],
)
def test_vocabulary_names_the_columns(tmp_path, name, vocabulary):
    """One word a line beside the file becomes the column names, whatever the line ends and
    characters within words.
    """
    content = FORMATS[name.removesuffix(".gz")](COUNTS)
    path = write(tmp_path, name, gzip.compress(content) if name.endswith(".gz") else content)
    write(tmp_path, vocabulary, "Æther\r\nb c\r\nd\u2028e\r\nf".encode())
    assert readers.read(path).column_names == ("Æther", "b c", "d\u2028e", "f")
    if vocabulary != "vocab.txt":
        write(tmp_path, "vocab.txt", b"another\n")
        assert readers.read(path).column_names[0] == "Æther"


@pytest.mark.parametrize("name", ["x.ldac", "x.csv"])
def test_vocabulary_adds_unused_columns(tmp_path, name):
    """Where the file does not say how many columns there are, the vocabulary does."""
    path = write(tmp_path, name, FORMATS[name](COUNTS))
    write(tmp_path, "vocab.txt", b"a\nb\nc\nd\ne\nf\n")
    data = readers.read(path)
    assert data.column_names == tuple("abcdef")
    np.testing.assert_array_equal(data.matrix.toarray(), np.pad(COUNTS, ((0, 0), (0, 2))))


@pytest.mark.parametrize("name", ["x.npz", "x.csv"])
def test_vocabulary_of_the_wrong_length(tmp_path, name):
    """A vocabulary that does not fit is an error that names both files."""
    path = write(tmp_path, name, FORMATS[name](COUNTS))
    write(tmp_path, "vocab.txt", b"a\nb\nc\n")
    fails(path, "vocab.txt", "4 columns", "3 lines")


def test_vocabulary_in_another_encoding(tmp_path):
    """A vocabulary that is not UTF-8 is an error that names the line."""
    path = write(tmp_path, "x.npy", npy(COUNTS))
    vocabulary = write(tmp_path, "vocab.txt", "a\nb\nça\nd\n".encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(f"{vocabulary}, line 3: ") + ".*UTF-8"):
        readers.read(path)


# Row names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.mtx.gz", "docword.x.txt"])
def test_row_names(tmp_path, name):
    """One name a line beside the file becomes the row names, and they stay with their rows."""
    content = FORMATS[name.removesuffix(".gz")](COUNTS)
    path = write(tmp_path, name, gzip.compress(content) if name.endswith(".gz") else content)
    write(
        tmp_path,
        ("docword.x" if name.startswith("docword") else "x") + ".rows",
        "first\n\nthe 3rd\nß\n".encode(),
    )
    data = readers.read(path)
    assert data.row_names == ("first", "", "the 3rd", "ß") and data.column_names is None
    assert data.select(np.array([3, 0])).row_names == ("ß", "first")


def test_row_names_that_do_not_fit(tmp_path):
    """Names for other rows than there are name both files; of csv, which does not say how many rows
    there are, more names mean more rows.
    """
    path = write(tmp_path, "x.ldac", ldac(COUNTS))
    write(tmp_path, "x.rows", b"a\nb\nc\nd\ne\n")
    fails(path, "x.rows", "4 rows", "5 lines")
    assert readers.read(write(tmp_path, "x.csv", triples(COUNTS, mark=","))).matrix.shape == (5, 4)
    write(tmp_path, "x.rows", b"a\nb\nc\n")
    fails(tmp_path / "x.csv", "x.rows", "4 rows", "3 lines")


# Blocks of rows -----------------------------------------------------------------------------------


def test_blocks_of_unsorted_triples(tmp_path):
    """Triples that are not sorted by row are refused; read as a whole,
    they are welcome.
    """
    path = write(tmp_path, "x.csv", b"r,c,v\n1,0,1\n1,1,1\n0,0,1\n")
    assert readers.read(path).total == 3
    with pytest.raises(InputError, match=re.escape(f"{path}: row 0 follows row 1: sort")):
        list(readers.blocks(path))


def test_blocks_with_names(tmp_path):
    """Rows that only the names tell of are there, and names that do not fit are refused."""
    path = write(tmp_path, "x.csv", triples(COUNTS, mark=","))
    write(tmp_path, "x.rows", b"a\n" * 6)
    write(tmp_path, "x.vocab", b"a\n" * 5)
    assert sum(part.shape[0] for part in readers.blocks(path)) == 6 and readers.names(path) == (
        ("a",) * 5,
        ("a",) * 6,
    )
    write(tmp_path, "x.vocab", b"a\n" * 3)
    with pytest.raises(InputError, match=r"4 columns but x\.vocab beside it has 3 lines"):
        list(readers.blocks(path))


# Bad files ----------------------------------------------------------------------------------------

MARKET = b"%%MatrixMarket matrix coordinate integer general\n"
ARRAY = b"%%MatrixMarket matrix array integer general\n"
WHOLE = "is not a whole number from 0 to"
BAD = [
    # name, content, parts of the message
    ("x.xls", b"", ["none of the known", ".npz", ".csv", ".ldac", ".h5ad"]),
    ("x", b"", ["none of the known"]),
    ("x.npy.gz", gzip.compress(npy(COUNTS)), ["none of the known"]),
    ("x.csv", b"", ["no entries"]),
    ("x.csv", b"row,column,value\n", ["no entries"]),
    ("x.csv", b"0,0,1\n0,1\n", ["line 2", "row,column,count"]),
    ("x.csv", b"0,1\n0,1\n", ["line 1", "2 number(s) do not read as `row,column,count`"]),
    ("x.csv", b"0,0,1\n\n0,1,2,3\n", ["line 3", "row,column,count"]),
    ("x.csv", b"0,0,1\n,0 1,2\n", ["line 2", "row,column,count"]),
    ("x.csv", b"0,0,1\n0,1,-2\n", ["line 2", "the count -2", WHOLE]),
    ("x.csv", b"0,0,1\n\n-1,1,2\n", ["line 3", "the row -1", WHOLE]),
    ("x.csv", b"0,0,1.5\n", ["line 1", "the count 1.5", WHOLE]),
    ("x.csv", b"0,0,1\n0,1,nan\n", ["line 2", "the count nan", WHOLE]),
    ("x.csv", b"0,0,1\n0,1,1e999\n", ["line 2", WHOLE]),
    ("x.csv", b"0,0,1\n0,x,1\n", ["line 2", "'x'"]),
    ("x.csv", b"row,0,1\n", ["line 1", "'row'"]),
    ("x.csv", b"a,b,c\nd,e,f\n", ["line 2", "'d'"]),
    ("x.csv", b"0,0,16777216\n", ["line 1", "the count 16777216", "16777215"]),
    ("x.csv", b"0,99999999999999999999,1\n", ["line 1", "the column 1e+20", WHOLE]),
    ("x.csv", b"0,0,1\n2000000000,0,1\n", ["2000000001 rows", "consecutively"]),
    (
        "x.csv",
        "".join(f"{i},0,1\n" for i in range(5000)).encode() + b"14000000,0,1\n",
        ["14000001 rows", "consecutively"],
    ),
    ("x.csv", b"0,0,0\n", ["empty"]),
    ("x.csv", "0,0,1\n".encode("utf-16"), ["line 1", "UTF-16"]),
    ("x.csv", b"0,0," + b"1" * 100_000 + b"x\n", ["line 1", "could not convert"]),
    ("x.tsv", b"0\t0\t1\n0,1,2\n", ["line 2", "row\tcolumn\tcount"]),
    ("x.csv.gz", b"0,0,1\n", ["not gzip"]),
    ("x.csv.gz", gzip.compress(triples(COUNTS, mark=","))[:-12], ["cut short"]),
    ("x.csv.gz", gzip.compress(b"0,0,1\n" * 1000)[:12], ["cut short"]),
    ("x.csv.gz", gzip.compress(b"0,0,1\n")[:-8] + bytes(8), ["damaged"]),
    ("x.ldac", b"", ["no documents"]),
    ("x.ldac", b"\n\n", ["no documents"]),
    ("x.ldac", b"1 0:2\n2 0:1\n", ["line 2", "begins with '2' but holds 1 terms"]),
    ("x.ldac", b"1 0:2\n1 0:1 1:1\n", ["line 2", "begins with '1' but holds 2 terms"]),
    ("x.ldac", b"1 0:2\n1 0\n", ["line 2", "term:count"]),
    ("x.ldac", b"1 0\n", ["line 1", "term:count"]),
    ("x.ldac", b"1 0:2\n2 :0 1\n", ["line 2", "term:count"]),
    ("x.ldac", b"1 0:2\n0:1 1\n", ["line 2", "term:count"]),
    ("x.ldac", b"1 0:2\n\n1 0:1\n", ["line 3", "blank"]),
    ("x.ldac", b"1 0:2\n1 0:-1\n", ["line 2", "the count -1", WHOLE]),
    ("x.ldac", b"1 0:2\n1 word:1\n", ["line 2", "'word'"]),
    ("x.ldac", b"1 3000000000:1\n", ["line 1", "the term 3000000000", WHOLE]),
    ("x.ldac", b"0\n0\n", ["empty"]),
    ("x.txt", b"The cat sat on the mat.\n", ["line 1", "'The'"]),
    ("docword.x.txt", b"", ["line 1", "D"]),
    ("docword.x.txt", b"2\n3\n", ["line 3", "NNZ"]),
    ("docword.x.txt", b"1 1 1\n", ["line 1", "a number"]),
    ("docword.x.txt", b"2\nmany\n1\n", ["line 2", "words W"]),
    ("docword.x.txt", b"2\n3\n1\n3 1 1\n", ["line 4", "the document 3", "from 1 to 2"]),
    ("docword.x.txt", b"2\n3\n1\n1 0 1\n", ["line 4", "the word 0", "from 1 to 3"]),
    ("docword.x.txt", b"2\n3\n1\n1 1 -1\n", ["line 4", "the count -1"]),
    ("docword.x.txt", b"2\n3\n1\n1 1 1\n1 2\n", ["line 5", "document word count"]),
    ("docword.x.txt", b"2\n3\n2\n1 1 1\n", ["line 3", "announces 2 entries but 1 follow"]),
    ("docword.x.txt", b"9999999999\n3\n1\n1 1 1\n", ["9999999999 rows"]),
    ("docword.x.txt", b"1\n14000000\n1\n1 1 1\n", ["14000000 columns", "consecutively"]),
    ("x.mtx", b"", ["Matrix Market"]),
    (
        "x.mtx",
        b"%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n",
        ["complex128", "numbers"],
    ),
    ("x.mtx", MARKET + b"2 2 1\n1 3 1\n", ["Matrix Market", "Line 3"]),
    ("x.mtx", MARKET.replace(b"integer", b"real") + b"2 2 1\n1 1 1.5\n", ["whole numbers", "1.5"]),
    ("x.mtx", MARKET + b"2 2 1\n1 1 -1\n", ["negative"]),
    ("x.mtx", MARKET + b"2 2 2\n1 1 1\n", ["Matrix Market"]),
    ("x.mtx", MARKET + b"-2 2 2\n1 1 1\n", ["Matrix Market"]),
    ("x.mtx", MARKET + b"2 2 1000000000\n1 1 1\n", ["announces 1000000000 entries"]),
    ("x.mtx", ARRAY + b"2 2\n1\n1\n1\n", ["Matrix Market"]),
    ("x.mtx", ARRAY + b"1000000000000 0\n", ["rows"]),
    ("x.npy", b"", ["complete array"]),
    ("x.npy", npy(COUNTS)[:-1], ["complete array"]),
    ("x.npy", npy(COUNTS)[:20], ["complete array"]),
    ("x.npy", npz(scipy.sparse.csr_array(COUNTS)), ["complete array"]),
    ("x.npy", npy(COUNTS[0]), ["two-dimensional", "(4,)"]),
    ("x.npy", npy(np.array([["a", "b"]])), ["<U1", "numbers"]),
    ("x.npy", npy(COUNTS * 1j), ["complex128", "numbers"]),
    ("x.npy", npy(np.array([[1, 2], [3, -4]])), ["negative", "-4"]),
    ("x.npy", npy(np.array([[1, 0.25]])), ["whole numbers", "0.25"]),
    ("x.npy", npy(np.array([[np.nan, 1]])), ["NaN"]),
    ("x.npy", npy(np.zeros((2, 2))), ["empty"]),
    ("x.npy", npy(np.zeros((0, 2))), ["empty"]),
    ("x.npz", b"", ["complete sparse matrix"]),
    ("x.npz", npz(scipy.sparse.csr_array(COUNTS))[:-30], ["complete sparse matrix"]),
    ("x.npz", npz(scipy.sparse.bsr_array(COUNTS)), ["bsr", "tocsr"]),
    ("x.npz", npz(scipy.sparse.csr_array(COUNTS - 1)), ["negative", "-1"]),
    ("x.npz", npz(scipy.sparse.csr_array(COUNTS / 2)), ["whole numbers", "0.5"]),
]


@pytest.mark.parametrize("together", [1, 10**5])
def test_bad_files(tmp_path, monkeypatch, together):
    """A bad file is one sentence that names the file, the line where there is one, and the problem;
    so are its blocks, whatever their size.
    """
    monkeypatch.setattr(numbers, "LINES_TOGETHER", together)
    for name, content, parts in BAD:
        path = write(tmp_path, name, content)
        fails(path, *parts)
        if parts != ["empty"]:  # a block may be
            with pytest.raises(InputError) as caught:
                list(readers.blocks(path))
            assert all(part in str(caught.value) for part in (name, *parts)), (
                name,
                content[:60],
                str(caught.value),
            )


def test_missing_file_and_folder(tmp_path):
    """What is not a file is refused by name."""
    fails(tmp_path / "missing.npz", "does not exist")
    (tmp_path / "folder.csv").mkdir()
    fails(tmp_path / "folder.csv", "folder")
    with pytest.raises(
        InputError, match=r"usable path|does not exist"
    ):  # depends on the version of Python
        readers.read("a\0b.csv")
    with pytest.raises(InputError, match="regular file"):
        readers.read("/dev/zero")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path):
    """A file without permission to read is refused by name."""
    path = write(tmp_path, "x.csv", b"0,0,1\n")
    path.chmod(0)
    fails(path, "permissions")


def test_endless_line(tmp_path, monkeypatch):
    """A line of any length does not fill the memory."""
    monkeypatch.setattr(opening, "LINE_BYTES", 1000)
    fails(write(tmp_path, "x.csv", b"0,0,1\n" + b"1" * 5000), "line 2", "longer than")


def test_inconsistent_sparse_matrix(tmp_path):
    """A stored matrix whose indices point outside is refused before anything follows them."""
    matrix = scipy.sparse.csr_array(COUNTS)
    parts = {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "shape": matrix.shape,
        "format": b"csr",
    }
    for part in ("indices", "indptr"):
        np.savez(tmp_path / "x.npz", **{**parts, part: parts[part] * 50})
        fails(tmp_path / "x.npz", "complete sparse matrix")
    np.savez(tmp_path / "y.npz", matrix=COUNTS)
    fails(tmp_path / "y.npz", "save_npz")


class _Bomb:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    """Files that hold pickles are refused, and nothing in them runs."""
    monkeypatch.chdir(tmp_path)
    objects = np.array([[_Bomb(), _Bomb()]], dtype=object)
    np.save(tmp_path / "x.npy", objects, allow_pickle=True)
    np.savez(
        tmp_path / "x.npz",
        data=objects,
        indices=objects,
        indptr=objects,
        shape=objects,
        format=objects,
    )
    fails(tmp_path / "x.npy")
    fails(tmp_path / "x.npz")
    assert not (tmp_path / "unpickled").exists()


def _mutations(content):
    """Copies of a good file with a piece replaced."""
    return st.builds(
        lambda start, length, piece: content[:start] + piece + content[start + length :],
        st.integers(0, len(content)),
        st.integers(0, 8),
        st.one_of(
            st.binary(max_size=8), st.text("0123456789 ,:;\t\n\r.-+eE", max_size=8).map(str.encode)
        ),
    )


@pytest.mark.parametrize(
    "name",
    [
        "x.npz",
        "x.npy",
        "x.mtx",
        "array.mtx",
        "x.ldac",
        "docword.x.txt",
        "x.csv",
        "x.csv.gz",
    ],
)
@settings(
    max_examples=60,
    deadline=5000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(choice=st.data())
def test_any_bytes_parse_or_fail_clearly(tmp_path, name, choice):
    """Any byte string given to a reader either parses to counts or raises InputError, soon; in
    blocks, the same unless its rows are not in order.
    """
    good = (
        gzip.compress(triples(COUNTS, mark=","), mtime=0)
        if name.endswith(".gz")
        else FORMATS[name](COUNTS)
    )
    content = choice.draw(st.one_of(st.binary(max_size=60), _mutations(good)))
    path = write(tmp_path, name, content)
    try:
        data = readers.read(path)
    except InputError as error:
        assert name in str(error) and "\n" not in str(error)
        data = None
    else:
        values = data.matrix.data
        assert data.total > 0 and np.all(values == np.floor(values)) and np.all(values > 0)
        assert data.matrix.indices.max() < data.num_columns
    try:
        total = sum(part.sum(dtype=np.float64) for part in readers.blocks(path))
    except InputError as error:
        assert name in str(error) and (data is None or "sort the lines" in str(error))
    else:
        assert total == (0 if data is None else data.total)


@settings(
    max_examples=200,
    deadline=5000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(["x.csv", "x.tsv", "x.txt", "x.mtx", "docword.txt"]),
    text=st.text("0123 ,:;\t\n\r.-e%", max_size=40),
)
@example(name="x.txt", text="1\n1\n1\n1 1 1")
@example(name="x.csv", text="")
def test_any_line_noise_parses_or_fails_clearly(tmp_path, name, text):
    """Texts made of the formats' own characters either parse or raise InputError."""
    try:
        readers.read(write(tmp_path, name, text.encode()))
    except InputError as error:
        assert name in str(error)


# Votes --------------------------------------------------------------------------------------------

TEXT_OF_BILLS = b"0,0,1\n1,1,2\n2,0,1\n"


def test_votes_beside_the_text(tmp_path):
    """Votes of 0 are votes, and what is not listed is missing; the order of lines does not matter,
    nor does a header.
    """
    path = write(tmp_path, "x.csv", TEXT_OF_BILLS)
    for content in (b"bill,member,vote\n0,0,1\n0,2,0\n2,1,1\n", b"2;1;1\r\n0;2;0\r\n0;0;1\r\n"):
        write(tmp_path, "x.votes.csv", content)
        data = readers.read_text_and_votes(path)
        votes = data.votes.tocoo()
        assert (data.kind, data.num_rows, data.num_members) == ("text_and_votes", 3, 3)
        assert sorted(
            zip(votes.row.tolist(), votes.col.tolist(), votes.data.tolist(), strict=True)
        ) == [(0, 0, 1), (0, 2, 0), (2, 1, 1)]
    alone = readers.read_text_and_votes(write(tmp_path, "y.votes.csv", b"0,1,1\n1,0,0\n"))
    assert alone.num_columns == 0 and alone.num_members == 2


BAD_VOTES = [
    (b"0,0,1\n1,0,2\n", ["line 2", "the vote 2 is not a whole number from 0 to 1"]),
    (b"0,0,1\n1,0,-1\n", ["line 2", "the vote -1"]),
    (b"0,0,1\n1,0,nan\n", ["line 2", "the vote nan"]),
    (b"0,0,yea\n", ["line 1", "'yea'"]),
    (
        b"b,m,v\n0,0,1\n3,0,1\n",
        ["line 3", "the bill 3 is not a whole number from 0 to 2", "correct it"],
    ),
    (b"0,0,1\n1,0,1\n0,0,0\n", ["member 0 has voted on bill 0 more than once", "keep one"]),
    (b"0,0,1\n1,0\n", ["line 2", "bill,member,vote"]),
    (b"0,0,1\n0,2000000000,1\n", ["2000000001 columns", "consecutively"]),
    (b"bill,member,vote\n", ["no entries"]),
    (b"\xff\xfe0", ["UTF-16"]),
]


def test_bad_votes(tmp_path):
    """One sentence that names the file of votes, the line, the problem and the fix."""
    path = write(tmp_path, "x.csv", TEXT_OF_BILLS)
    for content, parts in BAD_VOTES:
        write(tmp_path, "x.votes.csv", content)
        with pytest.raises(InputError) as caught:
            readers.read_text_and_votes(path)
        message = str(caught.value)
        assert all(part in message for part in ("x.votes.csv", *parts)) and message.endswith(".")


def test_votes_are_no_counts(tmp_path):
    """Read as counts, the nays would be lost: so that is refused, as a whole, in blocks, and in
    writing.
    """
    path = write(tmp_path, "x.votes.csv", b"0,0,1\n0,1,0\n")
    fails(path, "is that of votes")
    with pytest.raises(InputError, match="is that of votes"):
        list(readers.blocks(path))
    with pytest.raises(InputError, match="not written to a file of this name"):
        writers.write(counts([[1, 2]]), path, overwrite=True)
    assert readers.read_text_and_votes(path).votes.nnz == 2


def test_missing_votes_and_silent_bills(tmp_path):
    """Text without votes says where they belong; a bill without words or votes is refused."""
    path = write(tmp_path, "x.ldac", b"1 0:1\n0\n")
    with pytest.raises(
        InputError, match=r"x\.ldac: the votes are missing: write them beside it as x\.votes\.csv"
    ):
        readers.read_text_and_votes(path)
    write(tmp_path, "x.votes.csv", b"0,0,1\n")
    with pytest.raises(InputError, match=r"x\.votes\.csv: Bill 1 has neither words nor votes"):
        readers.read_text_and_votes(path)


@settings(
    max_examples=100,
    deadline=5000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    content=st.one_of(st.binary(max_size=40), st.text("01 2,;\n\r-.e", max_size=40).map(str.encode))
)
def test_any_votes_parse_or_fail_clearly(tmp_path, content):
    """Any bytes in place of the votes either parse or raise InputError."""
    path = write(tmp_path, "x.csv", TEXT_OF_BILLS)
    write(tmp_path, "x.votes.csv", content)
    for file in (path, tmp_path / "x.votes.csv"):
        try:
            assert set(readers.read_text_and_votes(file).votes.data.tolist()) <= {0.0, 1.0}
        except InputError as error:
            assert "x.votes.csv" in str(error) and "\n" not in str(error)
