"""scikit-learn's users: estimators keep its rules, and work in its pipelines and searches."""

import copy
import io
import warnings

import jax
import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy.special import digamma, softmax
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import inference
import pp_models
from inference.estimators import class_name
from pp_models.errors import InputError

NAMES = [class_name(name) for name in pp_models.available()]
FEW = {"n_components": 2, "max_iter": 20}
# What scikit-learn checks and we do not keep, with the reason.
EXPECTED = {
    "check_fit_score_takes_y": "score deals out whole tokens; scikit-learn passes fractions",
    "check_n_features_in_after_fitting": "partial_fit keeps whole counts; scikit-learn passes "
    "fractions",
}
QUICK = [  # checks of scikit-learn that compile few programs
    "check_estimator_cloneable",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_estimators_unfitted",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_get_params_invariance",
    "check_set_params",
    "check_mixin_order",
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_repr",
    "check_positive_only_tag_during_fit",
]


def estimator(name, **given):
    return getattr(pp_models.sklearn, name)(**given)


def topics(seed=0, rows=60):
    """Two groups of documents of six words."""
    rng = np.random.default_rng(seed)
    shares = np.array([[0.4, 0.3, 0.2, 0.05, 0.03, 0.02], [0.02, 0.03, 0.05, 0.2, 0.3, 0.4]])
    group = rng.integers(0, 2, rows)
    return np.array([rng.multinomial(40, shares[g]) for g in group]), group


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_an_estimator(name):
    """Its parameters are the model's hyper-parameters, and it can be cloned."""
    made = estimator(name, n_components=3)
    model = pp_models.load(made._model_name)
    own = {"n_components", "engine", "max_iter", "engine_options", "random_state", "verbose"}
    factors = {"num_topics", "rank", "num_components"} - (
        {"rank"} if "num_topics" in model.Hyper._fields else set()
    )
    assert set(made.get_params()) == own | (set(model.Hyper._fields) - factors)
    assert clone(made).get_params() == made.get_params()
    assert model.title in type(made).__doc__


@pytest.mark.parametrize("name", ["LDA", "PMF"])
def test_rules_that_cost_nothing(name):
    """Those of scikit-learn's checks that fit little; `make calibrate` runs all of them."""
    for made, check in estimator_checks_generator(estimator(name, **FEW)):
        if check.func.__name__ in QUICK:
            check(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "Votes" not in name])
def test_scikit_learns_checks(name):
    """All of scikit-learn's own checks, but for those in EXPECTED. Votes need y of their own."""
    found = check_estimator(estimator(name, **FEW), expected_failed_checks=EXPECTED, on_fail=None)
    failed = {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"}
    assert not failed


def test_topics_in_a_pipeline_and_a_search():
    """Texts to counts, topics and a class; cross-validation chooses the number of topics."""
    rng = np.random.default_rng(0)
    words = np.array(["cat", "dog", "pet", "tax", "vote", "law"])
    counts, group = topics()
    texts = [" ".join(rng.permutation(np.repeat(words, row))) for row in counts]
    steps = [
        ("count", CountVectorizer()),
        ("topics", pp_models.sklearn.LDA(max_iter=30)),
        ("sort", LogisticRegression()),
    ]
    search = GridSearchCV(Pipeline(steps), {"topics__n_components": [1, 2]}, cv=2)
    search.fit(texts, group)
    assert search.best_params_ == {"topics__n_components": 2}
    assert search.best_score_ > 0.95
    names = search.best_estimator_[:-1].get_feature_names_out()
    assert list(names) == ["lda0", "lda1"]


@pytest.fixture(scope="module")
def fitted():
    counts, _ = topics()
    frame = pd.DataFrame(counts, columns=["cat", "dog", "pet", "tax", "vote", "law"])
    return pp_models.sklearn.LDA(**FEW).fit(frame), frame


def test_the_fit_is_that_of_the_engine(fitted):
    """The same key, data and options give `inference.fit`'s posterior; X may be sparse."""
    made, frame = fitted
    assert made.components_.shape == (2, 6)
    np.testing.assert_allclose(made.components_.sum(1), 1)
    sparse = clone(made).fit(scipy.sparse.csr_array(frame.to_numpy()))
    np.testing.assert_allclose(sparse.components_, made.components_)
    data = pp_models.data.counts(frame.to_numpy())
    fit = inference.fit(
        "lda", data, "cavi", {"num_topics": 2}, made._key(), progress=False, num_epochs=20
    )
    np.testing.assert_allclose(fit.posterior.mean("beta"), made.components_)


def test_set_output_names_topics(fitted):
    """`set_output` gives a DataFrame whose index is that of X."""
    made, frame = fitted
    told = clone(made).set_output(transform="pandas").fit(frame).transform(frame[:5])
    assert list(told.columns) == ["lda0", "lda1"] and list(told.index) == list(frame.index[:5])


def test_a_fitted_estimator_is_stored_in_our_format(fitted):
    """joblib keeps bytes of `Fit.save`: no array and no program is pickled."""
    made, frame = fitted
    kept = io.BytesIO()
    joblib.dump(made, kept)
    assert isinstance(made.__getstate__()["_fit"], bytes)
    assert copy.deepcopy(made).fit_.data is made.fit_.data
    again = joblib.load(io.BytesIO(kept.getvalue()))
    np.testing.assert_allclose(again.transform(frame), made.transform(frame), atol=1e-6)
    assert again.get_feature_names_out().tolist() == ["lda0", "lda1"]
    with pytest.raises(InputError, match="loaded without them"):
        again.partial_fit(frame)
    assert clone(pp_models.sklearn.LDA()).get_params()["n_components"] == 10


def weights(topics, counts, alpha):
    """Means of q(theta) at X 12's fixed point, given the parameters of q(beta), in NumPy."""
    log_beta = digamma(topics) - digamma(topics.sum(1, keepdims=True))
    gamma = np.full((len(counts), len(topics)), alpha + counts.sum(1, keepdims=True) / len(topics))
    for _ in range(2000):
        phi = softmax(digamma(gamma)[:, :, None] + log_beta, axis=1)
        gamma = alpha + np.einsum("dv,dkv->dk", counts, phi)
    return gamma / gamma.sum(1, keepdims=True)


def test_fractions_are_weights(fitted):
    """A count of 1.5 enters X 12 as 1.5: rows are at that fixed point. Samplers, `score` and
    `partial_fit`, which deal with whole tokens, refuse fractions."""
    made, frame = fitted
    half = frame / 8
    topics = np.asarray(made.fit_.posterior.natural("beta"), float)
    found = made.transform(half)
    expected = weights(topics, half.to_numpy(), float(made.fit_.hyper.alpha))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert np.abs(found - made.transform(frame)).max() > 1e-2
    for use in (lambda: made.score(half), lambda: clone(made).partial_fit(half)):
        with pytest.raises(InputError, match="fractions"):
            use()
    with pytest.raises(InputError, match="fractions"):
        pp_models.sklearn.LDA(n_components=2, engine="gibbs").fit(half)
    with pytest.raises(InputError, match="fitted to fractions"):
        clone(made).fit(half).partial_fit(frame)


def test_rows_are_learned_in_portions():
    """`partial_fit` keeps all rows and finds the two groups."""
    counts, group = topics(rows=80)
    made = pp_models.sklearn.LDA(n_components=2)
    for part in (counts[:40], counts[40:]):
        made.partial_fit(part)
    assert made.fit_.data.num_rows == 80
    side = made.transform(counts)[:, 0] > 0.5
    assert max(np.mean(side == group), np.mean(side != group)) > 0.9
    assert not hasattr(pp_models.sklearn.PMF(), "partial_fit")


def test_ratings_are_predicted_with_intervals():
    """Missing ratings are NaN; predictions of held-out ones beat their mean, and `score` is minus
    an error."""
    rng = np.random.default_rng(0)
    X = 3 + rng.normal(size=(40, 2)) @ rng.normal(size=(2, 15)) + 0.1 * rng.normal(size=(40, 15))
    seen = rng.random(X.shape) < 0.7
    made = pp_models.sklearn.PMF(n_components=2).fit(np.where(seen, X, np.nan))
    users, items = np.nonzero(~seen)
    found = made.predict_ratings(users, items)
    assert np.sqrt(np.mean((found.mean - X[~seen]) ** 2)) < 0.5 * X.std()
    assert np.all((found.lower < found.mean) & (found.mean < found.upper))
    assert made.components_.shape == (2, 15)
    known = np.where(seen, X, np.nan)
    drawn = clone(made).set_params(engine="gibbs", max_iter=200).fit(known)
    offset = drawn.fit_.hyper.offset
    for one in (made, drawn):  # draws have rotations of their own, and one common one here
        rebuilt = one.transform(known) @ one.components_ + offset
        assert np.sqrt(np.mean((rebuilt - X)[seen] ** 2)) < 0.5 * X.std()
    assert -X.std() < made.score(np.where(seen, X, np.nan)) < 0


def test_votes_are_y():
    """Bills' words are X, members' votes y; bills are transformed by their words alone."""
    _, data = pp_models.load("lg_nmf_votes").example(jax.random.key(0))
    votes = np.full((data.num_rows, data.num_members), np.nan)
    coordinates = data.votes.tocoo()
    votes[coordinates.coords] = coordinates.data
    made = pp_models.sklearn.LGNMFVotes(**FEW).fit(data.matrix, votes)
    assert made.transform(data.matrix).shape == (data.num_rows, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these votes were fitted
        assert -2 < made.score(data.matrix, votes) < 0
    with pytest.raises(InputError, match="as y"):
        made.score(data.matrix)
    with pytest.raises(ValueError, match="requires y"):
        clone(made).fit(data.matrix)
