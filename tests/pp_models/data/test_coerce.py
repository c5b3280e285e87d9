"""Data as people have them: texts, tables, bags of words, vectorisers, cells, ratings by name.

What has one meaning becomes `Data` with its names; what has several is an error that names the
choice.
"""

import itertools
import warnings
from collections import Counter
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from gensim.corpora import Dictionary
from sklearn.feature_extraction.text import CountVectorizer

import pp_models
from pp_models import InputError, text
from pp_models.data import as_data, counts, dense, from_table, ratings

NAN = float("nan")
TEXTS = ["The cat sat on the mat.", "A dog and a cat.", "Tax law."]
WORDS = ("cat", "dog", "law", "mat", "sat", "tax")
COUNTED = np.array([[1, 0, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1]])


class Dataset:
    """A Hugging Face data set, as far as it is looked at."""

    def __init__(self, columns):
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name):
        return self.columns[name]

    def __len__(self):
        return len(next(iter(self.columns.values())))


def same(data, matrix, columns=None, rows=None):
    np.testing.assert_array_equal(data.matrix.toarray(), matrix)
    assert (data.column_names, data.row_names) == (columns, rows)


# Texts --------------------------------------------------------------------------------------------

FRAME = pd.DataFrame({"text": TEXTS}, index=["a", "b", "c"])
TEXTS_AS = {
    "list": TEXTS,
    "tuple": tuple(TEXTS),
    "array": np.array(TEXTS),
    "Series": FRAME["text"],
    "string Series": FRAME["text"].astype("string"),
    "frame": FRAME,
    "frame with labels": FRAME.assign(label=[0, 1, 1]),
    "polars Series": pl.Series("talk", TEXTS),
    "polars": pl.DataFrame({"talk": TEXTS}),
    "arrow": pa.table({"text": TEXTS, "label": [0, 1, 1]}),
    "dict": {"text": TEXTS, "label": [0, 1, 1]},
    "data set": Dataset({"text": TEXTS, "label": [0, 1, 1]}),
    "records": [{"text": one, "label": 0} for one in TEXTS],
}


@pytest.mark.parametrize("form", TEXTS_AS)
def test_texts_are_counted(form):
    """The words of the texts are the columns, whatever holds the texts; an index names the rows."""
    value = TEXTS_AS[form]
    rows = ("a", "b", "c") if isinstance(value, pd.Series | pd.DataFrame) else None
    same(as_data(value), COUNTED, WORDS, rows)
    if form != "records":
        same(text.count(value), COUNTED, WORDS, rows)


@pytest.mark.parametrize("make", [as_data, text.count])
def test_one_string_is_no_corpus(make):
    """`text.count("one string")` made a document of every letter."""
    with pytest.raises(
        InputError, match=r"One string is one document: pass a list, as in \[text\]"
    ):
        make("one string of five words")


@pytest.mark.parametrize("missing", [None, NAN, pd.NA, np.nan, pd.NaT])
def test_a_missing_text_is_named(missing):
    """Which one it is, and how to drop it; from a table by the column's name."""
    texts = ["a cat", missing, "dogs"]
    for make in (as_data, text.count):
        with pytest.raises(InputError, match=r"Document 1 is missing: .* \[text for text"):
            make(texts)
    table = pd.DataFrame({"talk": texts})
    with pytest.raises(InputError, match=r"table\.dropna\(subset=\['talk'\]\)"):
        as_data(table)
    same(as_data(table.dropna(subset=["talk"])), np.eye(2), ("cat", "dogs"), ("0", "2"))


def test_several_columns_of_text():
    """The error names the call, and that call works, on pandas and polars."""
    speeches = {"speaker": ["ann", "bob", "cy"], "year": [1, 2, 3], "speech": TEXTS}
    for table in (pd.DataFrame(speeches), pl.DataFrame(speeches), Dataset(speeches)):
        call = r"pp_models\.data\.from_table\(table, text='speech', id='speaker'\)"
        with pytest.raises(InputError, match=call):
            as_data(table)
        same(from_table(table, text="speech", id="speaker"), COUNTED, WORDS, ("ann", "bob", "cy"))
    few = from_table(table, text="speech", min_df=2)
    assert few.column_names == ("cat",) and few.row_names is None


def test_text_beside_numbers():
    """A column of strings may be texts, or the names of rows of counts: both calls are named."""
    table = pl.DataFrame({"speech": ["s1", "s2"], "cat": [1, 0], "dog": [2, 3]})
    with pytest.raises(InputError, match=r"text='speech'.*id='speech'"):
        as_data(table)
    with pytest.raises(InputError, match="'speech' of the table are not"):
        counts(table)
    same(from_table(table, id="speech"), [[1, 2], [0, 3]], ("cat", "dog"), ("s1", "s2"))


def test_known_words():
    """New texts are counted by the words of a fit, also where they have none of them."""
    new = as_data(["Dogs sat; the cat sat.", "Emus!", ""], columns=WORDS)
    same(new, [[1, 0, 0, 0, 2, 0], [0] * 6, [0] * 6], WORDS)
    same(as_data([["cat", "emu"], []], columns=WORDS), [[1, 0, 0, 0, 0, 0], [0] * 6], WORDS)
    with pytest.warns(UserWarning, match="1 of 2 columns of the fit .* such as 'new york'"):
        as_data(["A cat in New York."], columns=("cat", "new york"))


def test_splits_are_named():
    """A dict of Hugging Face splits is not a table."""
    with pytest.raises(InputError, match=r"pass one of them, such as dataset\['train'\]"):
        as_data({"train": Dataset({"text": TEXTS}), "test": Dataset({"text": TEXTS})})


# Counts -------------------------------------------------------------------------------------------

COUNT_FRAME = pd.DataFrame(COUNTED, columns=WORDS, index=["a", "b", "c"])
TABLES = {
    "frame": COUNT_FRAME,
    "nullable": COUNT_FRAME.astype("Int64"),
    "objects": COUNT_FRAME.astype(object),
    "sparse": COUNT_FRAME.astype(pd.SparseDtype(int, 0)),
    "polars": pl.DataFrame(dict(zip(WORDS, COUNTED.T, strict=True))),
    "dict": dict(zip(WORDS, COUNTED.T.tolist(), strict=True)),
}


@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("make", [as_data, counts])
def test_tables_of_counts_keep_their_names(make, form):
    """`data.counts(DataFrame)` dropped index and columns."""
    rows = ("a", "b", "c") if isinstance(TABLES[form], pd.DataFrame) else None
    same(make(TABLES[form]), COUNTED, WORDS, rows)


def test_a_sparse_table_stays_sparse():
    """A frame whose dense form would have 240 MB."""
    matrix = scipy.sparse.coo_array(([2, 3], ([0, 99_999], [1, 2])), shape=(100_000, 300))
    frame = pd.DataFrame.sparse.from_spmatrix(scipy.sparse.coo_matrix(matrix))
    assert as_data(frame).total == 5 and as_data(frame).column_names is None


def test_ranges_are_no_names():
    """A range of numbers is no name: neither index nor columns."""
    same(as_data(pd.DataFrame(COUNTED)), COUNTED)
    same(as_data([[1, 2], [3, 0]]), [[1, 2], [3, 0]])
    same(as_data(([1, 2], [3, 0])), [[1, 2], [3, 0]])


def test_bags_of_words():
    """gensim's corpus alone has numbers, with its Dictionary words. Empty documents stay."""
    tokens = [["cat", "dog", "cat"], [], ["emu"]]
    dictionary = Dictionary(tokens)
    bags = [dictionary.doc2bow(one) for one in tokens]
    expected, words = [[2, 1, 0], [0, 0, 0], [0, 0, 1]], ("cat", "dog", "emu")
    for make in (as_data, counts):
        same(make(bags), expected)
    same(as_data((bags, dictionary)), expected, words)
    same(as_data((bags, dict(enumerate(words)))), expected, words)
    same(as_data((iter(bags), dictionary)), expected, words)
    same(as_data(tokens), expected, words)
    same(as_data([Counter(one) for one in tokens]), expected, words)
    same(
        as_data((bags, dictionary), columns=("emu", "yak")),
        [[0, 0], [0, 0], [1, 0]],
        ("emu", "yak"),
    )
    with pytest.raises(InputError, match="holds the word 2, but the dictionary 2 words"):
        as_data((bags, {0: "cat", 1: "dog"}))
    with pytest.raises(InputError, match="pass raw counts"):
        as_data([[(0, 0.5)]])


@pytest.mark.parametrize(
    "bad", [[[(0, 1), 3]], [[("cat", 1)]], [[(-1, 1)]], [[(0, "x")]], [{"cat": "x", "dog": 2}]]
)
def test_bad_bags(bad):
    """One sentence in the words of bags, not NumPy's about shapes."""
    with pytest.raises(InputError) as caught:
        as_data(bad)
    assert "inhomogeneous" not in str(caught.value)


def test_vectorisers_bring_their_words():
    """(X, vectoriser), (X, names) and (texts, vectoriser) of scikit-learn."""
    vectoriser = CountVectorizer(stop_words=["the", "on", "and"])
    X = vectoriser.fit_transform(TEXTS)
    for pair in ((X, vectoriser), (X, vectoriser.get_feature_names_out()), (TEXTS, vectoriser)):
        same(as_data(pair), COUNTED, WORDS)
    same(as_data((FRAME["text"], vectoriser)), COUNTED, WORDS, ("a", "b", "c"))
    with pytest.raises(InputError, match="5 column names for 6 columns"):
        as_data((X, WORDS[:5]))


def test_cells():
    """AnnData: cells by genes, from layers["counts"] if X holds something else."""
    names = pd.DataFrame(index=["c1", "c2", "c3"]), pd.DataFrame(index=list(WORDS))
    cells = anndata.AnnData(scipy.sparse.csr_matrix(COUNTED.astype(float)), *names)
    same(as_data(cells), COUNTED, WORDS, ("c1", "c2", "c3"))
    cells.layers["counts"] = cells.X
    cells.X = np.log1p(cells.X.toarray())
    same(counts(cells), COUNTED, WORDS, ("c1", "c2", "c3"))


def test_long_tables():
    """A line for each entry; it is not taken for three columns of counts."""
    table = pd.DataFrame(
        {"doc": ["b", "a", "b"], "word": ["emu", "cat", "cat"], "count": [1, 2, 3]}
    )
    with pytest.raises(
        InputError, match=r"from_table\(table, entries=\('doc', 'word', 'count'\)\)"
    ):
        as_data(table)
    same(
        from_table(table, entries=("doc", "word", "count")),
        [[2, 0], [3, 1]],
        ("cat", "emu"),
        ("a", "b"),
    )


def test_paths(tmp_path):
    """A path is what it holds; a string is a text."""
    for i, one in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_text(one)
    same(as_data(Path(tmp_path)), COUNTED, WORDS, ("0", "1", "2"))
    some = as_data(Path(tmp_path), columns=("emu", "cat"))
    same(some, [[0, 1], [0, 1], [0, 0]], ("emu", "cat"), ("0", "1", "2"))
    with pytest.raises(InputError, match=r"read by pp_models\.datasets\.load"):
        as_data(str(tmp_path))


@pytest.mark.parametrize(
    ("value", "kind", "part"),
    [
        ([], "counts", "no rows"),
        (None, "counts", "two-dimensional"),
        (object(), "ratings", "users x items"),
        ("ratings.csv", "ratings", "datasets.load"),
        (COUNT_FRAME, "text_and_votes", "pair"),
        (FRAME, "dense", r"'dense', id='text'"),
        (COUNT_FRAME, "count", "Did you mean 'counts'"),
        ((COUNTED, 3), "counts", r"\(matrix, vectoriser\)"),
        ({"a": "cat"}, "counts", "a list for each column"),
        ({"a": [1, 2], "b": [1]}, "counts", "equal length"),
        (pl.DataFrame({"a": [1]}).lazy(), "counts", "collect"),
    ],
)
def test_what_is_not_understood(value, kind, part):
    """One sentence that ends in a fix."""
    with pytest.raises(InputError, match=part) as caught:
        as_data(value, kind)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"text": "talk"}, "no column 'talk' for text: its columns are 'text'"),
        ({"min_df": 2}, "add text="),
        ({"text": "text", "kind": "ratings"}, "Words of texts are counts"),
        ({"entries": ("text", "text")}, "three columns"),
        ({"kind": "text_and_votes"}, "Unknown kind of table"),
    ],
)
def test_bad_columns(arguments, part):
    """A wrong column or combination is named."""
    with pytest.raises(InputError, match=part):
        from_table(FRAME, **arguments)


# Ratings ------------------------------------------------------------------------------------------

TRIPLES = [("bob", "Heat", 4.0), ("alice", "Matrix", 5.0), ("bob", "Matrix", 0.0)]
PEOPLE, FILMS = ("alice", "bob"), ("Heat", "Matrix")
RATED = [[NAN, 5.0], [4.0, 0.0]]
LONG = pd.DataFrame(TRIPLES, columns=["userId", "movie_id", "rating"])
RATINGS_AS = {
    "frame": LONG,
    "order": LONG[["rating", "movie_id", "userId"]],
    "by position": LONG.set_axis(["who", "what", "how"], axis=1),
    "polars": pl.DataFrame(TRIPLES, schema=["user", "item", "stars"], orient="row"),
    "dicts": LONG.to_dict("records"),
    "tuples": TRIPLES,
    "array": np.array(TRIPLES, object),
    "columns": tuple(zip(*TRIPLES, strict=True)),
    "wide": pd.DataFrame(RATED, index=PEOPLE, columns=FILMS),
    "AnnData": anndata.AnnData(
        np.array(RATED), pd.DataFrame(index=list(PEOPLE)), pd.DataFrame(index=list(FILMS))
    ),
}


def observed(data):
    """users x items, nan where there is no rating."""
    entries, found = data.matrix.tocoo(), np.full(data.matrix.shape, NAN)
    found[entries.row, entries.col] = entries.data
    return found


@pytest.mark.parametrize("form", RATINGS_AS)
def test_ratings_by_name(form):
    """`alice,Matrix,5`: ids of any type are names, in increasing order; a rating of 0 is one."""
    value = RATINGS_AS[form]
    if form == "array":
        value = value[:, [0, 1, 2]]
    data = as_data(value, "ratings")
    np.testing.assert_array_equal(observed(data), RATED)
    assert (data.row_names, data.column_names) == (PEOPLE, FILMS)


def test_numbers_as_ids():
    """Numbers from 1 are names and add no empty user or item; 0 to n - 1 stay as they are."""
    one = as_data(([1, 10, 2], [7, 7, 9], [3.0, 4.0, 5.0]), "ratings")
    assert (one.row_names, one.column_names) == (("1", "2", "10"), ("7", "9"))
    np.testing.assert_array_equal(observed(one), [[3, NAN], [NAN, 5], [4, NAN]])
    zero = as_data(([0, 1], [1, 0], [3.0, 4.0]), "ratings")
    assert zero.row_names is None is zero.column_names and zero.matrix.shape == (2, 2)
    floats = pd.DataFrame({"user": [1.0, 2.0], "item": ["01", "1"], "rating": [1, 2]})
    assert as_data(floats, "ratings").row_names == ("1", "2")
    assert as_data(floats, "ratings").column_names == ("01", "1")


def test_indices_from_1_are_warned_of():
    """`data.ratings` takes whole numbers as indices, and says so if nothing has index 0."""
    with pytest.warns(UserWarning, match="begin at 1 and items at 1, not at 0"):
        assert ratings([1, 2], [1, 2], [3.0, 4.0]).matrix.shape == (3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ratings([1, 2], [1, 2], [3.0, 4.0], shape=(3, 3))
        ratings([0, 2], [1, 2], [3.0, 4.0])
    named = ratings(["b", "a"], ["x", "x"], [3.0, 4.0])
    assert (named.row_names, named.column_names) == (("a", "b"), ("x",))


def test_times_are_ignored_with_a_word():
    """A time, by name or by position as in MovieLens' u.data."""
    with pytest.warns(UserWarning, match="'timestamp' are ignored"):
        data = as_data(LONG.assign(timestamp=881250949), "ratings")
    assert data.num_entries == 3
    plain = pd.DataFrame([[196, 242, 3, 881250949], [186, 302, 3, 891717742]])
    with pytest.warns(UserWarning, match="'3' are ignored"):
        assert as_data(plain, "ratings").row_names == ("186", "196")


def test_matrices_of_ratings():
    """nan is missing in a dense matrix; what a sparse one stores is observed."""
    np.testing.assert_array_equal(observed(as_data(np.array(RATED), "ratings")), RATED)
    stored = scipy.sparse.coo_array(([5.0, 4.0, 0.0], ([0, 1, 1], [1, 0, 1])), shape=(2, 2))
    np.testing.assert_array_equal(observed(as_data(stored, "ratings")), RATED)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (np.array([[0, 0, 4.0], [0, 2, 1.0]]), "three columns can be"),
        (
            pd.DataFrame([[0, 0, 4.0], [0, 2, 1.0]], columns=list("abc")),
            r"entries=\('a', 'b', 'c'\)",
        ),
        (np.diag([1.0, 2.0, 3.0, 4.0]), "if 0 stands for missing"),
        ((["a", "a"], ["x", "x"], [1.0, 2.0]), "User a rated item x more than once"),
        ((["a", None], ["x", "x"], [1.0, 2.0]), "The user of rating 1 is missing"),
        (([1.5, 2], ["x", "x"], [1.0, 2.0]), "neither a whole number nor a name"),
        ((["a"], ["x", "y"], [1.0]), "1 users and 2 items"),
        (LONG.assign(rating=["good", "bad", "good"]), "the column 'rating' holds others"),
        (LONG.assign(rating=[1.0, NAN, 2.0]), "leave missing ratings out"),
        (LONG.set_axis(["who", "how", "what"], axis=1)[["who", "what", "how"]], "not understood"),
    ],
)
def test_what_ratings_cannot_mean(value, part):
    """Ambiguous, repeated and missing ratings are refused, with the choice."""
    with pytest.raises(InputError, match=part):
        as_data(value, "ratings")


# Dense rows, text and votes -----------------------------------------------------------------------


def test_dense_tables_keep_their_names():
    table = pd.DataFrame([[0.5, 1.0], [2.0, 3.0]], index=["a", "b"], columns=["x", "y"])
    for data in (as_data(table, "dense"), dense(table), dense(table.reset_index(drop=True))):
        np.testing.assert_array_equal(data.values, table)
        assert data.column_names == ("x", "y")
    named = from_table(table.reset_index(names="id"), "dense", id="id")
    assert named.row_names == ("a", "b") and named.values.shape == (2, 2)


def test_text_and_votes():
    """Each in any form; rows of tables are matched by name, whatever their order."""
    votes = pd.DataFrame([[1, None], [0, 1], [None, 0]], index=["c", "a", "b"])
    data = as_data((FRAME, votes), "text_and_votes")
    same(data, COUNTED, WORDS, ("a", "b", "c"))
    assert data.votes.tocoo().data.tolist() == [0, 1, 0, 1] and data.votes.indptr[1] == 2
    alone = as_data((None, votes), "text_and_votes")
    assert alone.row_names == ("c", "a", "b") and alone.num_columns == 0
    plain = as_data((TEXTS, [[1, 0], [0, NAN], [1, 1]]), "text_and_votes")
    assert plain.num_members == 2 and plain.column_names == WORDS
    with pytest.raises(InputError, match="different names"):
        as_data((FRAME, votes.rename(index={"a": "z"})), "text_and_votes")


# Files --------------------------------------------------------------------------------------------

SPEECHES = 'id,year,speech\na,1,"The cat\nsat on the mat."\nb,2,"A dog, and a cat."\nc,3,Tax law.\n'


@pytest.fixture
def speeches(tmp_path):
    path = tmp_path / "speeches.csv"
    path.write_text(SPEECHES)
    return path


def test_a_table_of_texts_in_a_file(speeches, tmp_path):
    """Quoted commas and line breaks belong to the text. Parquet holds the same."""
    load = pp_models.datasets.load
    columns = {"text_column": "speech", "id_column": "id"}
    same(load(speeches, "lda", **columns), COUNTED, WORDS, ("a", "b", "c"))
    pd.read_csv(speeches).to_parquet(tmp_path / "speeches.parquet")
    same(load(tmp_path / "speeches.parquet", **columns), COUNTED, WORDS, ("a", "b", "c"))
    assert load(speeches, text_column="speech", min_df=2).column_names == ("cat",)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, r"line 3: the column 'speech' holds text.*--text-column 'speech' --id-column 'id'"),
        ({"text_column": "speach"}, "Did you mean 'speech'"),
        ({"id_column": "id"}, "name the column of texts, too"),
        ({"text_column": "speech", "kind": "ratings"}, "makes counts, and ratings are wanted"),
    ],
)
def test_words_where_numbers_are_expected(speeches, options, part):
    """It was "'id' does not read as a number"."""
    with pytest.raises(InputError, match=part):
        pp_models.datasets.load(speeches, **options)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"id,speech\na,b,c\n", "line 2: there are 3 fields, but 2 in the first line"),
        (b'id,speech\na,"b\n', "line 2: the line is no row of a table"),
        (b"id,speech\na,\xff\n", "line 2: byte 0xff is not UTF-8"),
        (b"1,speech\n", "its first line must name the columns"),
        (b"speech,speech\na,b\n", "Unknown column"),
        (b"id,speech\na,\n", "No word is left"),
    ],
)
def test_damaged_tables(tmp_path, content, part):
    """One sentence with the line."""
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InputError, match=part) as caught:
        pp_models.datasets.load(tmp_path / "x.csv", text_column="speech")
    assert "x.csv" in str(caught.value) and "\n" not in str(caught.value)


def lines(triples):
    return "".join(",".join(map(str, one)) + "\n" for one in triples)


@pytest.mark.parametrize("head", ["", "user,item,rating\n", "userId,movieId,rating\n"])
def test_a_file_of_ratings(tmp_path, head):
    """A model of ratings reads ids of any type, with and without a header."""
    path = tmp_path / "films.csv"
    path.write_text(head + lines(TRIPLES))
    data = pp_models.datasets.load(path, "pmf")
    np.testing.assert_array_equal(observed(data), RATED)
    assert (data.row_names, data.column_names) == (PEOPLE, FILMS)


def test_ratings_in_another_order(tmp_path):
    """Columns are found by their names; further ones are ignored with a word."""
    path = tmp_path / "films.tsv"
    path.write_text(
        "rating\twhen\tUser\tItem\n" + "".join(f"{r}\t9\t{u}\t{i}\n" for u, i, r in TRIPLES)
    )
    with pytest.warns(UserWarning, match="'when' are ignored"):
        data = pp_models.datasets.load(path, kind="ratings")
    np.testing.assert_array_equal(observed(data), RATED)


def test_numbers_in_a_file_of_ratings(tmp_path):
    """Ids from 1, ISBNs and leading zeros are names; 0 to n - 1 are not."""
    path = tmp_path / "films.csv"
    for ids, names in {
        ("1", "2"): ("1", "2"),
        ("007", "7"): ("007", "7"),
        ("900000000", "1"): ("1", "900000000"),
        ("034", "34X"): ("034", "34X"),
        ("34", "34X"): ("34", "34X"),
        ("0", "1"): None,
    }.items():
        path.write_text("user,item,rating\n" + lines(zip(ids, ids, (4, 5), strict=True)))
        data = pp_models.datasets.load(path, "pmf")
        assert data.row_names == data.column_names == names and data.matrix.shape == (2, 2)


def test_a_file_of_ratings_is_not_silently_counts(tmp_path):
    """By its header or its name; a model of counts may take such numbers all the same."""
    for name, head in (("ratings.csv", ""), ("films.csv", "user_id,item_id,rating\n")):
        (tmp_path / name).write_text(head + "0,0,5\n1,0,3\n")
        with pytest.raises(InputError, match=r"seems to hold ratings.*--kind ratings"):
            pp_models.datasets.load(tmp_path / name)
        assert pp_models.datasets.load(tmp_path / name, kind="ratings").kind == "ratings"
        assert pp_models.datasets.load(tmp_path / name, "hpf").kind == "counts"


def test_counts_by_name(tmp_path):
    """`doc,word,count` with names; the same for a model of counts on `user,item,rating`."""
    path = tmp_path / "words.csv"
    path.write_text("doc,word,count\nb,emu,1\na,cat,2\nb,cat,3\n")
    same(pp_models.datasets.load(path, "lda"), [[2, 0], [3, 1]], ("cat", "emu"), ("a", "b"))


def test_ids_are_read_alike_from_tables_and_files(tmp_path):
    """For any ids: the names of a DataFrame and of its csv file agree."""
    pool = ["0", "1", "2", "10", "01", "a", "B", "é", "x y", "-3"]
    for i, size in enumerate((1, 2, 3, 5, 10)):
        ids = pool[i : i + size]
        triples = [(u, v, 1 + j) for j, (u, v) in enumerate(itertools.product(ids, ids[:2]))]
        (tmp_path / "r.csv").write_text("user,item,rating\n" + lines(triples))
        found = pp_models.datasets.load(tmp_path / "r.csv", "pmf")
        expected = as_data(pd.DataFrame(triples, columns=["user", "item", "rating"]), "ratings")
        assert (found.row_names, found.column_names) == (expected.row_names, expected.column_names)
        np.testing.assert_array_equal(observed(found), observed(expected))


def test_names_beside_texts_are_not_lost_in_silence():
    """A column called text is taken; one that may name the rows is told of."""
    table = pd.DataFrame({"id": [7, 8], "text": ["cat dog", "tax law"], "year": [1990, 1991]})
    with pytest.warns(UserWarning, match=r"'id' is ignored: .*id='id'\) takes it"):
        found = as_data(table)
    assert found.column_names == ("cat", "dog", "law", "tax")


@pytest.mark.parametrize("name", ["id", "doc_id", "Unnamed: 0"])
def test_numbers_of_rows_are_no_words(name):
    """A first column of ids is refused; one of counts with such a name is a word."""
    table = pd.DataFrame({name: [1001, 1002, 1003], "cat": [1, 0, 2], "tax": [0, 2, 1]})
    with pytest.raises(InputError, match=r"seems to number the rows: .*from_table"):
        as_data(table)
    assert as_data(table.assign(**{name: [1, 0, 1]})).column_names == (name, "cat", "tax")
