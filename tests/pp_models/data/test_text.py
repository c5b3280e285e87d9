"""Laws of `pp_models.text`: words are counted as they stand there, whole or in blocks, and bad text
gives one clear sentence.
"""

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pp_models import datasets
from pp_models.data import corpus, text
from pp_models.errors import InputError

DOCUMENTS = [
    "The cat sat on the mat.",
    "",
    "A cat's CAT, isn't it?  Über-mat!",
    "dogs bark; dogs bite",
]


def written(folder, documents=DOCUMENTS, name="x.docs"):
    path = folder / name
    raw = "".join(document + "\n" for document in documents).encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def table(data):
    """Document -> word -> count."""
    X = data.matrix.toarray()
    return [
        {data.column_names[v]: int(X[d, v]) for v in np.flatnonzero(X[d])}
        for d in range(data.num_rows)
    ]


EXPECTED = [
    {"cat": 1, "mat": 1, "sat": 1},
    {},
    {"cat": 1, "cat's": 1, "mat": 1, "über": 1},
    {"bark": 1, "bite": 1, "dogs": 2},
]


# Words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("Don\u2019t PANIC", ["don't", "panic"]),
        (
            "e\u0301te\u0301 \u00e9t\u00e9",
            ["\u00e9t\u00e9", "\u00e9t\u00e9"],
        ),  # an accent of its own or not
        (
            "\u0392\u03af\u03b2\u03bb\u03bf\u03c2 \u4e2d\u6587 \u043c\u0438\u0440",
            ["\u03b2\u03af\u03b2\u03bb\u03bf\u03c2", "\u4e2d\u6587", "\u043c\u0438\u0440"],
        ),
        ("a I x2y 3.14 snake_case 'quoted'", ["snake", "case", "quoted"]),
        ("\x00\x1f\u2028", []),
    ],
)
def test_words(document, words):
    """Runs of letters of any script in lower case, two or more, apostrophes within them kept."""
    assert text.words(document) == words


def test_counts(tmp_path):
    """One document a line, empty ones kept, from a file, a compressed file, memory, or a corpus."""
    for path in (written(tmp_path), written(tmp_path, name="y.docs.gz")):
        data = text.read(path)
        assert (
            table(data) == EXPECTED
            and list(data.column_names) == sorted(data.column_names)
            and data.row_names is None
        )
        assert datasets.load(path).hash == data.hash
        assert (
            corpus.read(corpus.write(tmp_path / "z.h5ad", path, overwrite=True)).hash == data.hash
        )
    assert text.count(DOCUMENTS).hash == data.hash


def test_a_folder_of_files(tmp_path):
    """One document a file, in the order of their names, which become the row names."""
    for name, document in zip("bcad", DOCUMENTS, strict=True):
        (tmp_path / f"{name}.txt").write_text(document.replace(" ", "\n"), encoding="utf-8")
    (tmp_path / "notes.md").write_text("not counted")
    data = text.read(tmp_path)
    assert data.row_names == ("a", "b", "c", "d") and table(data) == [
        EXPECTED[i] for i in (2, 0, 1, 3)
    ]
    assert datasets.load(str(tmp_path)).hash == data.hash


@pytest.mark.parametrize("name", ["bow.npz", "docword.x.txt", "x.ldac.gz"])
def test_a_vocabulary_is_no_document(tmp_path, name):
    """A folder with a file of counts and its vocabulary is not a folder of documents; with a table
    beside them, documents still are.
    """
    (tmp_path / "vocab.txt").write_text("cat\nmat\n")
    (tmp_path / "table.csv").write_text("author,year\n")
    assert text.is_text(tmp_path)
    (tmp_path / name).write_bytes(b"")
    assert not text.is_text(tmp_path)
    with pytest.raises(InputError, match="name one file in it"):
        datasets.load(tmp_path)


@pytest.mark.parametrize("together", [1, 2, 3])
def test_blocks_change_nothing(tmp_path, monkeypatch, together):
    """How many documents are counted together does not matter."""
    whole = text.read(written(tmp_path))
    monkeypatch.setattr(text, "DOCUMENTS_TOGETHER", together)
    assert text.read(written(tmp_path)).hash == whole.hash
    assert len(list(text.blocks(written(tmp_path))[0])) == -(-4 // together)


def test_which_words_are_counted(tmp_path):
    """Stop words from our list, a list, a file or none; words that too few or too many documents
    use left out, by number or share.
    """
    path = written(tmp_path)
    assert (
        set(text.read(path, min_df=2).column_names)
        == {"cat", "mat"}
        == set(text.read(path, min_df=0.5).column_names)
    )
    assert not {"cat", "mat"} & set(text.read(path, max_df=1).column_names) and not {
        "cat",
        "mat",
    } & set(text.read(path, max_df=0.25).column_names)
    assert {"the", "on", "isn't", "it"} <= set(text.read(path, stop_words="none").column_names)
    (tmp_path / "stop.txt").write_text("Cat\ndogs\n")
    for stop_words in (["CAT", "dogs"], tmp_path / "stop.txt", str(tmp_path / "stop.txt")):
        names = set(text.read(path, stop_words=stop_words).column_names)
        assert {"the", "cat's"} <= names and not {"cat", "dogs"} & names


def test_a_vocabulary(tmp_path):
    """Given words are counted, in their order; so they are where a vocabulary lies beside the file,
    unless options say otherwise.
    """
    path = written(tmp_path)
    words = ("mat", "the", "unheard", "cat")
    data = text.read(path, vocabulary=words)
    assert data.column_names == words and table(data)[0] == {"mat": 1, "the": 2, "cat": 1}
    (tmp_path / "x.vocab").write_text("".join(f"{word}\n" for word in words))
    (tmp_path / "x.rows").write_text("one\ntwo\nthree\nfour\n")
    beside = text.read(path)
    assert beside.hash == data.hash and beside.row_names == ("one", "two", "three", "four")
    assert "unheard" not in text.read(path, min_df=1).column_names


def test_a_vectoriser(tmp_path):
    """scikit-learn's vectoriser may do the work, and once fitted keeps its vocabulary."""
    CountVectorizer = pytest.importorskip("sklearn.feature_extraction.text").CountVectorizer
    path, vectoriser = (
        written(tmp_path),
        CountVectorizer(token_pattern=r"[a-z]{3,}", stop_words=["the"]),
    )
    data = text.read(path, vectoriser=vectoriser)
    np.testing.assert_array_equal(
        data.matrix.toarray(),
        CountVectorizer(token_pattern=r"[a-z]{3,}", stop_words=["the"])
        .fit_transform(DOCUMENTS)
        .toarray(),
    )
    heldout = text.count(["the dogs sat", "unheard of"], vectoriser=vectoriser)
    assert heldout.column_names == data.column_names and heldout.total == 2


# Bad input ----------------------------------------------------------------------------------------


def fails(path, *parts, **options):
    with pytest.raises(InputError) as caught:
        text.read(path, **options)
    message = str(caught.value)
    assert (
        all(part in message for part in (path.name, *parts))
        and message.endswith(".")
        and "\n" not in message
    )


def test_mixed_encodings(tmp_path):
    """A line, or a file, that is not UTF-8 is named, with its line."""
    path = tmp_path / "x.docs"
    path.write_bytes("été\n".encode() + "été\n".encode("latin-1"))
    fails(path, "line 2", "0xe9", "UTF-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("good")
    (folder / "b.txt").write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(InputError, match=r"b\.txt, line 3: byte 0xff is not UTF-8"):
        text.read(folder)
    path.write_bytes("text".encode("utf-16"))
    fails(path, "UTF-16")


def test_bad_files(tmp_path, monkeypatch):
    """Files without words, cut short, missing, or with an endless line."""
    fails(written(tmp_path, []), "no documents")
    fails(written(tmp_path, ["the and 42", ""]), "No word is left of 2 in 2 document(s)")
    fails(written(tmp_path), "No word is left", min_df=4)
    cut = tmp_path / "cut.docs.gz"
    cut.write_bytes(gzip.compress(b"some words\n" * 999)[:-9])
    fails(cut, "cut short")
    fails(tmp_path / "missing.docs", "does not exist")
    monkeypatch.setattr("pp_models.data.formats.opening.LINE_BYTES", 1000)
    fails(written(tmp_path, ["good", "word " * 1000]), "line 2", "longer than")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_df": 0}, "min_df"),
        ({"max_df": 1.5}, "max_df"),
        ({"max_df": "5"}, "max_df"),
        ({"stop_words": "englisch"}, "neither 'english' nor 'none' nor a file"),
        ({"mindf": 3}, "Did you mean 'min_df'"),
        ({"vectoriser": object()}, "CountVectorizer"),
        ({"vocabulary": "words"}, "a list of words"),
        ({"vocabulary": 5}, "a list of words"),
        ({"vocabulary": ["cat", "mat", "cat"]}, "'cat' more than once"),
        ({"stop_words": 5}, "stop_words must be"),
    ],
)
def test_bad_options(tmp_path, options, words):
    """Refused by name."""
    with pytest.raises(InputError, match=words):
        text.read(written(tmp_path), **options)
    with pytest.raises(InputError, match="Document 1 is bytes"):
        text.count(["a word", b"a word"])


@settings(
    max_examples=150,
    deadline=5000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    raw=st.one_of(
        st.binary(max_size=80),
        st.text(max_size=80).map(lambda x: x.encode("utf-8", "surrogatepass")),
    ),
    zipped=st.booleans(),
)
def test_any_bytes_parse_or_fail_clearly(tmp_path, raw, zipped):
    """Any bytes are counted or refused in one sentence that names the file; what is counted has one
    row a line.
    """
    path = tmp_path / ("x.docs.gz" if zipped else "x.docs")
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    try:
        data = text.read(path)
    except InputError as error:
        assert path.name in str(error)
    else:
        plain = raw if not raw.startswith(b"\x1f\x8b") else gzip.decompress(raw)
        assert data.num_rows == plain.count(b"\n") + (not plain.endswith(b"\n")) and data.total > 0
