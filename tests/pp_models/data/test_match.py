"""Columns of new rows are matched to the fitted ones by name, and what is lost is counted."""

import collections

import numpy as np
import pytest
import scipy.sparse

import pp_models
from pp_models.data import text
from pp_models.data.match import Fitted, match
from pp_models.errors import InputError

counts, dense, ratings = pp_models.data.counts, pp_models.data.dense, pp_models.data.ratings
WORDS = Fitted("counts", 3, ("cat", "dog", "tax"))


def table(found):
    return found.data.matrix.toarray().tolist()


def test_columns_move_to_the_places_of_their_names():
    """Another order, words that are not used, and two columns of one word."""
    new = counts([[1, 2, 0, 4], [0, 0, 5, 0]], ["tax", "cat", "tax", "cat"], ["a", "b"])
    found = match(new, WORDS)
    assert table(found) == [[6, 0, 1], [0, 0, 5]] and not found.note
    assert found.data.row_names == ("a", "b") and found.data.column_names == WORDS.column_names


def test_what_was_not_fitted_is_dropped_and_counted():
    """12 of 230 tokens, of the 7 unknown words that occur; an eighth never does."""
    unknown = [f"new{i}" for i in range(8)]
    row = [100, 118, *[1] * 5, 3, 4, 0]
    found = match(counts([row], ["cat", "dog", *unknown]), WORDS)
    assert found.note == "12 of 230 tokens (5.2 %) are of 7 words that were not fitted"
    assert table(found) == [[100, 118, 0]]
    one = match(counts([[1, 9]], ["ox", "cat"]), WORDS)
    assert one.note == "1 of 10 tokens (10.0 %) is of 1 word that was not fitted"


def test_texts_are_counted_by_the_fitted_words():
    """Unknown words are counted, stop words are not; a document may be empty."""
    texts = ["The cat and a dog, and a cat", "tax the zebra, zebra and yak", ""]
    found = match(texts, WORDS)
    assert table(found) == [[2, 1, 0], [0, 0, 1], [0, 0, 0]]
    told = "3 of 7 tokens (42.9 %) are of 2 words that were not fitted, stop words aside"
    assert found.note == told
    assert table(match(tuple(texts[:1]), WORDS)) == [[2, 1, 0]]
    assert table(match(np.array(texts), WORDS)) == table(found)
    fitted = Fitted("counts", 2, ("the", "cat"))
    assert table(match(texts[:1], fitted)) == [[1, 2]], "a stop word that was fitted is a word"


SPEECHES = (["cat", "zebra"], ["dog", "dog", "yak", "yak"])


@pytest.mark.parametrize(
    ("new", "of_texts"),
    [
        (SPEECHES, False),
        ((words for words in SPEECHES), False),
        ([collections.Counter(words) for words in SPEECHES], False),
        ((" ".join(words) for words in SPEECHES), True),
        ({"text": [" ".join(words) for words in SPEECHES]}, True),
    ],
)
def test_words_in_other_forms_are_counted_once(new, of_texts, monkeypatch):
    """Lists of words, streams, bags and tables of texts say what they lose; nothing is done twice,
    not even that which can be read only once.
    """
    seen, words = [], text.words
    monkeypatch.setattr(text, "words", lambda document: seen.append(document) or words(document))
    found = match(list(new) if isinstance(new, tuple) else new, WORDS)
    assert table(found) == [[1, 0, 0], [0, 2, 0]]
    told = "3 of 6 tokens (50.0 %) are of 2 words that were not fitted"
    assert found.note == told + ", stop words aside" * of_texts
    assert len([x for x in seen if x not in WORDS.column_names]) == 2 * of_texts


def test_text_with_votes_says_what_it_loses():
    fitted = Fitted("text_and_votes", 3, WORDS.column_names, 2)
    found = match((["cat zebra"], [[1.0, 0.0]]), fitted)
    assert table(found) == [[1, 0, 0]] and found.note.startswith("1 of 2 tokens (50.0 %) is of 1")


def test_bags_by_number_may_lack_the_last_words():
    """A fit on a bag without a dictionary takes part of that bag."""
    fitted = Fitted("counts", 5)
    assert table(match([[(0, 2)], [(3, 1)]], fitted)) == [[2, 0, 0, 0, 0], [0, 0, 0, 1, 0]]
    with pytest.raises(InputError, match="The fit has 5 words, but the new rows have 8"):
        match([[(7, 1)]], fitted)
    with pytest.raises(InputError, match="The fit has 5 words, but the new rows have 2"):
        match(np.array([[1, 2]]), fitted)


@pytest.mark.parametrize("form", [list, lambda texts: {"text": texts}])
def test_columns_that_no_text_can_hold_are_explained(form):
    """Pairs of words and capital letters: the sentence is the same for lists and for tables."""
    for names, words in (
        (("new york", "cat"), "1 of 2 columns .* such as 'new york'.*pass .matrix, names"),
        (("Cat", "NATO"), "2 of 2 columns of the fit are no words .* such as 'Cat'"),
    ):
        with pytest.warns(UserWarning, match=words):
            match(form(["Cat in New York, of NATO"]), Fitted("counts", 2, names))


def test_series_of_texts_keep_their_index():
    pandas = pytest.importorskip("pandas")
    texts = pandas.Series(["cat", "dog"], index=["first", "second"])
    assert match(texts, WORDS).data.row_names == ("first", "second")
    assert match(pandas.Series(["cat", "dog"]), WORDS).data.row_names is None


def test_without_names_on_both_sides_the_numbers_of_columns_must_agree():
    plain = Fitted("counts", 3)
    for new in (np.array([[1, 0, 2]]), scipy.sparse.csr_array([[1, 0, 2]]), counts([[1, 0, 2]])):
        assert table(match(new, plain)) == table(match(new, WORDS)) == [[1, 0, 2]]
    assert table(match(np.zeros((2, 3)), plain)) == [[0, 0, 0], [0, 0, 0]], "all rows may be empty"
    with pytest.raises(InputError, match="The fit has 3 words, but the new rows have 2"):
        match(np.array([[1, 2]]), WORDS)


def test_ratings_of_known_items():
    """Items by name; without names, those of the lowest numbers may be all that are rated."""
    items = Fitted("ratings", 3, ("Alien", "Brazil", "Casablanca"))
    new = ratings(
        [0, 0, 1], [0, 1, 2], [5.0, 0.0, 3.0], column_names=["Casablanca", "Jaws", "Alien"]
    )
    found = match(new, items)
    assert found.note == "1 of 3 ratings (33.3 %) is of 1 item that was not fitted"
    entries = found.data.matrix.tocoo()
    assert [*zip(*entries.coords, entries.data, strict=True)] == [(0, 2, 5.0), (1, 0, 3.0)]
    assert match(ratings([0], [1], [2.0]), items).data.num_columns == 3
    with pytest.raises(InputError, match="theirs are '4', those fitted 'Alien', 'Brazil'"):
        match(ratings([0], [4], [2.0]), items)


def rated_items(new, fitted):
    """Where the new ratings are found, and the note."""
    found = match(new, fitted)
    assert found.data.num_columns == fitted.num_columns
    return found.data.matrix.tocoo().coords[1].tolist(), found.note


@pytest.mark.filterwarnings("ignore:.*begin at 1")
def test_items_that_are_whole_numbers_keep_their_meaning():
    """An item 3 is the fitted item 3, on whichever side whole numbers have become names."""
    counted, from_one = Fitted("ratings", 8), Fitted("ratings", 3, ("1", "2", "3"))
    left_out = "1 of 2 ratings (50.0 %) is of 1 item that was not fitted"
    assert rated_items((["a", "a"], [3, 5], [5.0, 1.0]), counted) == ([3, 5], "")
    assert rated_items((["a", "a"], [3, 10**20], [5.0, 1.0]), counted) == ([3], left_out)
    assert rated_items(ratings([0, 0], [3, 8], [5.0, 1.0]), counted) == ([3], left_out)
    assert rated_items(ratings([0, 0], [1, 2], [5.0, 1.0]), from_one) == ([0, 1], "")
    even = Fitted("ratings", 3, ("0", "2", "4"))
    assert rated_items((["a", "b"], [0, 1], [5.0, 1.0]), even) == ([0], left_out)
    for new, words in (
        ((["a"], ["Alien"], [1.0]), "theirs are 'Alien', those fitted the numbers 0 to 7"),
        (ratings([0], [9], [1.0], shape=(1, 10)), "theirs are '9', those fitted the numbers"),
    ):
        with pytest.raises(InputError, match=words):
            match(new, counted)


def test_dense_columns_must_all_be_there():
    fitted = Fitted("dense", 2, ("height", "width"))
    found = match(dense([[1.0, 2.0, 3.0]], ["width", "depth", "height"]), fitted)
    assert found.data.values.tolist() == [[3.0, 1.0]]
    assert found.note == "1 of 3 values (33.3 %) is of 1 column that was not fitted"
    with pytest.raises(InputError, match="lack 1 of the 2 fitted columns, 'height'"):
        match(dense([[1.0]], ["width"]), fitted)


def test_what_cannot_be_matched_is_refused_in_a_sentence():
    """An error of two vocabularies shows some of both."""
    for new, fitted, words in (
        (counts([[1, 2]], ["ape", "bee"]), WORDS, "theirs are 'ape', 'bee', those fitted 'cat'"),
        (["cat"], Fitted("counts", 3), "does not know the names of its words"),
        (["cat", None], WORDS, "Document 1 is missing: drop such rows"),
        (ratings([0], [1], [2.0]), WORDS, "is of counts data, but the new rows are ratings"),
        (counts([[1]], ["a"]), Fitted("counts", 2, ("a", "a")), "'a' more than once"),
        (dense([[1, 2]], ["a", "a"]), Fitted("dense", 2, ("a", "b")), "have 'a' more than once"),
    ):
        with pytest.raises(InputError, match=words):
            match(new, fitted)


def test_new_bills_may_have_text_alone():
    """Their votes are not known yet; votes must be of the fitted members."""
    fitted = Fitted("text_and_votes", 3, WORDS.column_names, 2)
    found = match(["the cat"], fitted).data
    assert found.kind == "text_and_votes" and found.votes.shape == (1, 2) and found.votes.nnz == 0
    voted = pp_models.data.text_and_votes([[1, 0, 0]], [[1.0, 0.0, 1.0]], WORDS.column_names)
    with pytest.raises(InputError, match="2 members, but the new votes are of 3"):
        match(voted, fitted)
