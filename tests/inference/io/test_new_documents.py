"""What users of a fit ask of it: the topics of new documents, and tables with names."""

import importlib
import warnings

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core import align
from inference.core.transform import transform
from inference.io import tables
from pp_models.errors import InputError

PETS = "the cat and the dog chase the pet cat; a dog and a cat are pets"
LAWS = "congress voted on the tax law; the vote on the tax law passed by one vote"
TEXTS = [PETS, LAWS, PETS + " again", LAWS + " again", "tax the cat, vote for the dog"]
HYPER = {"num_topics": 2, "alpha": 0.5}


@pytest.fixture(scope="module")
def fit():
    names = ("pets", "laws", "more pets", "more laws", "both")
    data = pp_models.data.text.count(TEXTS, names)
    return inference.fit("lda", data, "cavi", HYPER, progress=False)


@pytest.fixture(scope="module")
def stored(fit, tmp_path_factory):
    """The fit, loaded without its data."""
    return inference.load(fit.save(tmp_path_factory.mktemp("fits") / "fit"))


def test_i_want_the_topics_of_new_documents(stored):
    """Texts, as a list; the fit comes from a file and its data are elsewhere. A warning says which
    share of the tokens the fit does not know; a document without known words has the prior's mean.
    """
    told = r"transform: 3 of 8 tokens \(37.5 %\) are of 2 words that were not fitted"
    with pytest.warns(UserWarning, match=told):
        found = stored.transform(["a dog, a zebra, a cat", "vote! giraffe, tax; giraffe law", "of"])
    assert list(found.columns) == ["topic 0", "topic 1"] and list(found.index) == [0, 1, 2]
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    pets = int(np.argmax(found.loc[0]))
    assert found.iloc[0, pets] > 0.6 and found.iloc[1, 1 - pets] > 0.6
    np.testing.assert_allclose(found.loc[2], 0.5, rtol=1e-9)


def test_the_fitted_documents_have_the_proportions_that_were_fitted(fit, stored):
    """LDA's weights are proportions, so that transform of the data, fit.documents() of the loaded
    fit and inference.topics agree; rows have their names. The row solver stops at 1e-5.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = stored.transform(fit.data)
    known = stored.documents()
    assert list(found.index) == list(known.index) == list(fit.data.row_names)
    np.testing.assert_allclose(found, known, atol=1e-4)
    np.testing.assert_allclose(known, inference.topics(fit).proportions, rtol=1e-9)


def test_the_topics_of_a_stored_fit_have_words(fit, stored):
    """The same table and the same text as with the data; inference's functions answer too."""
    table = stored.topics(4)
    assert list(table.columns) == ["topic", "share", "words"] and len(table) == 2
    assert list(table["share"]) == sorted(table["share"], reverse=True)
    assert all(table["words"] == fit.topics(4)["words"])
    best = {words.split(", ")[0] for words in table["words"]}
    assert best <= {"cat", "dog", "tax", "vote", "law"}
    assert inference.format_topics(stored) == inference.format_topics(fit)
    assert inference.top_words(stored, 3) == inference.top_words(fit, 3)
    documents = inference.representative_documents(stored, 0, 2)
    assert documents == inference.representative_documents(fit, 0, 2)


def test_without_pandas_the_tables_are_plain(fit, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(tables.importlib, "import_module", missing)
    assert importlib.import_module is missing and tables.load_pandas() is None
    means, sds = fit.transform(fit.data, sd=True)
    assert type(means) is type(sds) is np.ndarray and means.shape == sds.shape == (5, 2)
    first = fit.topics(2)[0]
    assert isinstance(fit.topics(2), list) and first.share > 0.3 and first.words.count(", ") == 1


def test_a_stored_fit_without_rows_has_words_and_no_shares(fit, tmp_path, monkeypatch):
    """Of very many rows the weights are not stored: shares are nan, and ranking by relevance, which
    needs them, is refused."""
    from inference.io import fits

    monkeypatch.setattr(fits, "MOST_SOLVED", 0)
    svi = inference.fit("lda", fit.data, "svi", HYPER, progress=False, num_epochs=2, batch_size=4)
    stored = inference.load(svi.save(tmp_path / "large"))
    table = stored.topics(3)
    assert table["share"].isna().all() and (table["words"].str.count(", ") == 2).all()
    with pytest.raises(InputError, match="without the rows' weights"):
        stored.topics(rank="relevance")
    assert stored.transform(["the cat"]).shape == (1, 2)


def test_a_point_has_no_sd_and_transforms(fit):
    """By map, the rows' modes given the point; of the fitted rows, those that were fitted."""
    point = inference.fit("lda", fit.data, "map", HYPER, basis="log", progress=False)
    found = point.transform(fit.data)
    np.testing.assert_allclose(found, point.posterior.mean("theta"), atol=1e-4)
    with pytest.raises(InputError, match="A point estimate has no standard deviations"):
        point.transform(fit.data, sd=True)


def test_draws_are_averaged_under_common_labels(fit):
    """Users of ratings by Gibbs: draws have labels (here, axes) of their own. The rows' means under
    aligned draws are near those of the aligned draws themselves, which the unaligned mean is not.

    Given the items a user is normal, so that both are the same expectation: five Monte Carlo
    standard errors of 40 draws.
    """
    hyper, data = pp_models.load("pmf").example(jax.random.key(0))
    options = {"num_samples": 400, "num_warmup": 200, "num_chains": 1, "progress": False}
    sampled = inference.fit("pmf", data, "gibbs", hyper, **options)
    means, sds = sampled.transform(data, sd=True)
    posterior = sampled.posterior
    draws = {site: posterior.flat(site) for site in posterior.sites}
    best = int(np.argmax(posterior.sample_stats["lp"].ravel()))
    first = {site: x[best] for site, x in draws.items()}
    aligned = align.common_labels(sampled.model, draws, first)[0]["u"]
    error = aligned.std(0) / np.sqrt(40)
    assert np.all(np.abs(means.to_numpy() - aligned.mean(0)) < 5 * error + 0.02)
    ratio = sds.to_numpy() / aligned.std(0)
    assert ratio.min() > 0.7 and ratio.max() < 1.4 and means.columns[0] == "factor 0"
    empty = pp_models.data.ratings([1], [0], [3.0], shape=(2, data.num_columns))
    np.testing.assert_allclose(sampled.transform(empty).loc[0], 0, atol=1e-6)


def test_grids_average_over_their_draws():
    """INLA: the rows' means are within a third of their sd of those of the grid."""
    hyper, data = pp_models.load("lg_nmf").example(jax.random.key(0))
    grid = inference.fit("lg_nmf", data, "inla", hyper, progress=False)
    means, sds = grid.transform(data, sd=True)
    away = (means.to_numpy() - grid.posterior.mean("s")) / sds.to_numpy()
    assert np.sqrt(np.mean(away**2)) < 1 / 3


def test_what_cannot_be_transformed_is_refused_in_a_sentence(fit):
    hyper, data = pp_models.load("bernoulli_mixture").example(jax.random.key(0))
    mixture = inference.fit("bernoulli_mixture", data, "cavi", hyper, progress=False)
    two = np.full((1, data.num_columns), 2.0)
    ratings = pp_models.data.ratings([0, 1], [0, 1], [1.0, 2.0])
    factors = inference.fit("pmf", ratings, "cavi", {"rank": 1}, progress=False)
    for call, words in (
        (lambda: fit.transform(pp_models.data.counts([[1]], ["yak"])), "theirs are 'yak'"),
        (lambda: fit.transform(np.ones((1, 3))), "the new rows have 3"),
        (lambda: mixture.transform(two), "binarise them first"),
        (lambda: fit.topics(rank="best"), "Unknown ranking of words 'best'"),
        (lambda: fit.topics(rank="relevance", relevance=2), "relevance must be a number from 0"),
        (lambda: fit.topics(0), "num_words must be"),
        (lambda: factors.topics(), "'pmf' has no topics or components"),
        (lambda: factors.documents(), "'pmf' has no topics"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_components_of_a_mixture_are_listed():
    """Shares are the weights' means, columns those with most ones; documents are probabilities."""
    ones = np.repeat(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]), [6, 3], 0)
    data = pp_models.data.dense(ones, column_names=["a", "b", "c", "d"])
    fit = inference.fit("bernoulli_mixture", data, "cavi", {"num_components": 2}, progress=False)
    table = fit.topics(2)
    assert list(table.columns) == ["component", "share", "words"]
    assert [set(words.split(", ")) for words in table["words"]] == [{"a", "b"}, {"c", "d"}]
    weights = fit.posterior.mean("pi")
    np.testing.assert_allclose(table["share"], np.sort(weights)[::-1], rtol=1e-6)
    np.testing.assert_allclose(fit.documents().sum(axis=1), 1, rtol=1e-6)
    assert fit.documents().iloc[0].max() > 0.9


def test_calls_with_few_rows_compile_once(fit, compiled):
    """A service that labels a document at a time does not wait for the compiler each time."""
    fit.transform(["the cat"])
    del compiled[:]
    for text in ("a dog and a cat chase the dog and the pet cat", "vote", "tax law", "of"):
        fit.transform([text, "the pet"])
    assert not compiled


def test_a_fit_that_is_one_row_wide_transforms():
    """One topic, one document, one word."""
    data = pp_models.data.counts([[3]], ["only"])
    fit = inference.fit("lda", data, "cavi", {"num_topics": 1}, progress=False)
    np.testing.assert_allclose(fit.transform(["only only"]), [[1.0]], rtol=1e-6)
    np.testing.assert_allclose(fit.topics()["share"], [1.0], rtol=1e-6)
    assert transform(fit.problem, fit.posterior, fit.options, data)[1] is None


def test_topics_for_other_tools():
    """OCTIS's dict and topicwizard's TopicData hold the fit's words, topics and proportions."""
    data = pp_models.data.counts([[4, 3, 0], [0, 1, 6]], ["cat", "dog", "tax"], ["a", "b"])
    fit = inference.fit("lda", data, num_topics=2, num_epochs=5, progress=False)
    octis, wizard = fit.topics(2, as_="octis"), fit.topics(2, as_="topicwizard")
    documents = np.asarray(fit.documents())
    np.testing.assert_allclose(octis["topic-word-matrix"].sum(1), 1)
    np.testing.assert_allclose(octis["topic-document-matrix"], documents.T)
    best = np.argsort(-octis["topic-word-matrix"], axis=1)[:, :2]
    assert octis["topics"] == [[data.column_names[v] for v in row] for row in best]
    assert wizard["corpus"] == ["a", "b"] and list(wizard["vocab"]) == list(data.column_names)
    np.testing.assert_allclose(wizard["document_topic_matrix"], documents)
    assert wizard["topic_names"][0] == "0: " + ", ".join(octis["topics"][0])
    assert wizard["transform"](data).shape == (2, 2)
    with pytest.raises(InputError, match="layout"):
        fit.topics(as_="octi")


def test_a_fit_is_loaded_with_its_texts(tmp_path):
    """The texts that were fitted are counted by the fitted words again; others are refused by a
    sentence that does not blame the file."""
    texts = ["cat dog cat pet", "tax vote tax law", "pet dog"]
    fit = inference.fit("lda", texts, num_topics=2, num_epochs=5, progress=False)
    path = fit.save(tmp_path / "fit.npz")
    again = inference.load(path, texts)
    assert again.data.hash == fit.data.hash and np.isfinite(again.bound)
    with pytest.raises(InputError, match="other data than these"):
        inference.load(path, ["cat dog", "tax", "law"])
