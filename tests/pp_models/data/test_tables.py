"""Ratings and dense observations from files: every format gives the same data, and every damage one
sentence that names the file.
"""

import contextlib
import gzip

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pp_models import InputError, datasets
from pp_models.data.formats.readers import read_dense, read_ratings

TRIPLES = [
    (0, 1, 3.5),
    (0, 2, 0.0),
    (2, 0, 5.0),
    (1, 1, 1.0),
]  # user 2 and item 2 are the last; a rating of zero is a rating


def written(folder, kind):
    users, items, values = map(np.array, zip(*TRIPLES, strict=True))
    path = folder / f"ratings{kind}"
    if kind == ".npz":
        scipy.sparse.save_npz(path, scipy.sparse.coo_array((values, (users, items)), shape=(3, 3)))
    elif kind == ".npy":
        table = np.full((3, 3), np.nan)
        table[users, items] = values
        np.save(path, table)
    else:
        mark = "\t" if ".tsv" in kind else ","
        text = (
            mark.join(("user_id:token", "item_id:token", "rating:float", "timestamp:float")) + "\n"
        )
        text += "".join(mark.join(map(str, (*triple, 881250949))) + "\n" for triple in TRIPLES)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    return path


def ignores(column):
    """Further columns are ignored with a word."""
    return pytest.warns(UserWarning, match=f"the column.* '{column}' are ignored")


@pytest.mark.parametrize("kind", [".tsv", ".csv.gz", ".npz", ".npy"])
def test_formats_agree(tmp_path, kind):
    """The same ratings from every format, through the model's own kind of data as well."""
    path = written(tmp_path, kind)
    said = contextlib.nullcontext() if kind in (".npz", ".npy") else ignores("timestamp:float")
    with said:
        found = read_ratings(path), datasets.load(path, "pmf")
    for data in found:
        assert data.kind == "ratings" and data.matrix.shape == (3, 3)
        entries = data.matrix.tocoo()
        found = sorted(zip(*(x.tolist() for x in (*entries.coords, entries.data)), strict=True))
        assert found == sorted(TRIPLES)


def test_headers_are_optional(tmp_path):
    """Without one, the first line is a rating."""
    path = tmp_path / "plain.csv"
    for mark in ("", "\ufeff"):  # spreadsheets begin a text with a byte-order mark
        path.write_text(f"{mark}0,1,3.5\n1,0,4\n", encoding="utf-8")
        assert read_ratings(path).num_entries == 2
    path.write_text("user,item,rating,title\n0,1,3.5,Alien\n1,0,4,Brazil\n")
    with ignores("title"):
        assert read_ratings(path).num_entries == 2
    path.write_text("3,5,1\n")
    assert read_ratings(path, complete=False).matrix.shape == (4, 6)


def test_dense_formats_agree(tmp_path):
    values = np.array([[0.5, -1.0, 2.0], [3.0, 4.5, 0.0]])
    np.save(tmp_path / "x.npy", values)
    (tmp_path / "x.csv").write_text("a,b,c\n0.5,-1,2\n3,4.5,0\n")
    for name in ("x.npy", "x.csv"):
        np.testing.assert_array_equal(read_dense(tmp_path / name).values, values)
    assert datasets.load(tmp_path / "x.npy", "gaussian_mixture").kind == "dense"


BAD = [
    ("twice.csv", b"0,0,3\n0,0,4\n", "rated item 0 more than once"),
    ("two.csv", b"0,1\n1,2\n", "line 1: the line does not read as `user,item,rating`"),
    ("comment.csv", b"0,0,5\n#1,1,4\n", "line 2: the line does not read as"),
    ("first.csv", b"0,0,abc\n1,1,4\n", "line 1: the line does not read as"),
    ("packed.npy.gz", b"", "only text may be gzipped"),
    ("negative.csv", b"0,-1,3\n", "the column -1 is not a whole number from 0"),
    ("half.csv", b"0,1.5,3\n", "the column 1.5 is not a whole number from 0"),
    ("nan.csv", b"0,0,nan\n", "NaN or infinite"),
    ("text.csv", b"u,i,r\n0,1,good\n", "line 2: the line does not read as"),
    ("short.csv", b"0,1,3\n0,2\n", "line 2: the line does not read as"),
    ("empty.csv", b"user,item,rating\n", "no entries"),
    ("bytes.csv", b"\xff\xfe\x00\x01,,\n", "UTF-16"),
    ("cut.csv.gz", gzip.compress(b"0,1,3\n" * 500, mtime=0)[:40], "cut short or damaged"),
    ("cut.npz", b"PK\x03\x04 nothing", "not a complete sparse matrix"),
    ("cut.npy", b"\x93NUMPY\x01\x00", "not a complete array"),
    ("ratings.xls", b"0,1,3\n", "must end in"),
]


def test_damage(tmp_path):
    """One sentence, with the file's name in it."""
    for name, content, words in BAD:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=words) as error:
            read_ratings(tmp_path / name)
        assert name in str(error.value)


def test_a_shape_takes_no_memory(tmp_path):
    """An archive may announce any shape; one that its ratings cannot fill is refused."""
    scipy.sparse.save_npz(
        tmp_path / "r.npz", scipy.sparse.coo_array(([1.0], ([0], [0])), shape=(2**40, 3))
    )
    with pytest.raises(InputError, match=r"r\.npz: 1099511627776 rows for 1 entries are too many"):
        read_ratings(tmp_path / "r.npz")


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_ratings(tmp_path / "nowhere.csv")


@settings(
    max_examples=100,
    deadline=5000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(["x.csv", "x.tsv.gz", "x.npz", "x.npy"]),
    content=st.one_of(
        st.binary(max_size=60), st.text("01 2,\t\n\r-.en", max_size=40).map(str.encode)
    ),
)
def test_any_bytes_parse_or_fail_clearly(tmp_path, name, content):
    """Any bytes given to a reader either parse or raise an InputError that names the file."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    for read in (read_ratings, read_dense):
        try:
            assert np.isfinite(read(path).total)
        except InputError as error:
            assert name in str(error)


def test_names_beside_the_file(tmp_path):
    """Names of users and items, or of rows and columns, lie beside the file; a vocabulary of other
    files there is not theirs.
    """
    (tmp_path / "r.csv").write_text("0,0,3\n1,1,4\n")
    (tmp_path / "vocab.txt").write_text("word\n")
    assert read_ratings(tmp_path / "r.csv").column_names is None
    (tmp_path / "r.rows").write_text("Ann\nBob\n")
    (tmp_path / "r.vocab").write_text("Alien\nBrazil\n")
    data = read_ratings(tmp_path / "r.csv")
    assert data.row_names == ("Ann", "Bob") and data.column_names == ("Alien", "Brazil")
    (tmp_path / "r.rows").write_text("Ann\n")
    with pytest.raises(InputError, match=r"r\.csv: There are 1 row names for 2 rows"):
        read_ratings(tmp_path / "r.csv")
