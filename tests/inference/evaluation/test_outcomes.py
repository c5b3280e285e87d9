"""Laws of measures of predicted outcomes, votes and ratings."""

import jax
import numpy as np
import pytest
from sklearn import metrics

import inference
import pp_models
from inference.evaluation.heldout import row_scores
from pp_models.errors import InputError


@pytest.fixture(scope="module")
def outcomes():
    """400 outcomes of 40 rows, some probabilities tied."""
    rng = np.random.default_rng(7)
    probability = np.round(rng.random(400), 2)
    return probability, (rng.random(400) < probability).astype(float), np.repeat(np.arange(40), 10)


def test_probability_scores_agree_with_scikit_learn(outcomes):
    """Accuracy, area under the curve, log loss and Brier score are scikit-learn's."""
    p, y, _ = outcomes
    found = inference.score_probabilities(np.clip(p, 0.01, 0.99), y)
    assert found.accuracy.value == pytest.approx(
        metrics.accuracy_score(y, np.clip(p, 0.01, 0.99) > 0.5)
    )
    assert found.auc.value == pytest.approx(metrics.roc_auc_score(y, p))
    assert found.log_loss.value == pytest.approx(metrics.log_loss(y, np.clip(p, 0.01, 0.99)))
    assert found.brier.value == pytest.approx(metrics.brier_score_loss(y, np.clip(p, 0.01, 0.99)))
    assert (
        found.auc.terms[y > 0].mean()
        == pytest.approx(found.auc.value)
        == pytest.approx(found.auc.terms[y == 0].mean())
    )


def test_errors_of_probability_scores(outcomes):
    """Standard errors are the bootstrap's, over outcomes, within 20 %: 300 resamples leave 4 %,
    linearisation the rest.
    """
    p, y, _ = outcomes
    found = inference.score_probabilities(p, y)
    pick = np.random.default_rng(0).integers(0, 400, (300, 400))
    again = [inference.score_probabilities(p[i], y[i]) for i in pick]
    for name in ("accuracy", "auc", "log_loss", "brier"):
        spread = np.std([getattr(one, name).value for one in again])
        assert getattr(found, name).standard_error == pytest.approx(spread, rel=0.2), name


def test_errors_know_of_rows(outcomes):
    """Outcomes repeated within their row add nothing: the error over rows stays, while that over
    single outcomes shrinks.
    """
    p, y, row = outcomes
    many = inference.score_probabilities(
        np.repeat(p, 9), np.repeat(y, 9), np.repeat(row, 9)
    ).log_loss
    assert many.standard_error == pytest.approx(
        inference.score_probabilities(p, y, row).log_loss.standard_error
    )
    assert (
        inference.score_probabilities(np.repeat(p, 9), np.repeat(y, 9)).log_loss.standard_error
        < 0.5 * many.standard_error
    )


def test_calibration_by_hand():
    """Two bins, of which one is right and one off by 0.4; a probability of one belongs to the last
    bin.
    """
    found = inference.calibration_error(
        np.array([0.5, 0.5, 1.0, 0.9, 0.95, 0.95]), np.array([1.0, 0, 1, 0, 1, 0.0])
    )
    assert found.value == pytest.approx(4 / 6 * 0.45)
    np.testing.assert_allclose(found.terms, [0, 0, *[0.45] * 4])


def test_better_probabilities_score_better(outcomes):
    """The probabilities that made the outcomes are better on every measure than the same
    shuffled.
    """
    p, y, _ = outcomes
    good, bad = (
        inference.score_probabilities(x, y) for x in (p, np.random.default_rng(0).permutation(p))
    )
    assert good.accuracy.value > bad.accuracy.value and good.auc.value > bad.auc.value
    assert all(
        getattr(good, name).value < getattr(bad, name).value
        for name in ("log_loss", "brier", "calibration_error")
    )


def test_votes():
    """Votes are scored by what `predict_votes` says of bills from their text alone, or with other
    votes; a vote must not be known already.
    """
    rng = np.random.default_rng(0)
    text, cast = rng.poisson(1.0, (12, 6)), rng.integers(0, 2, (12, 5)).astype(float)
    data = pp_models.data.text_and_votes(text, cast)
    hyper = {"num_topics": 2, "alpha1": 1.0, "alpha2": 1.0}
    fit = inference.fit(
        "lg_nmf_votes", data, "map", hyper, num_epochs=5, devices=jax.local_devices()[:1]
    )
    found = inference.score_votes(fit, data)
    silent = pp_models.data.text_and_votes(np.maximum(text, 0), np.full_like(cast, np.nan))
    assert found.brier.value == pytest.approx(
        np.mean((inference.predict_votes(fit, silent) - cast) ** 2)
    )
    hidden = rng.random(cast.shape) < 0.3
    known, asked = (
        pp_models.data.text_and_votes(text, np.where(mask, cast, np.nan))
        for mask in (~hidden, hidden)
    )
    partly = inference.score_votes(fit, asked, known)
    assert partly.brier.value == pytest.approx(
        np.mean((inference.predict_votes(fit, known) - cast)[hidden] ** 2)
    )
    assert len(partly.accuracy.terms) == hidden.sum()
    with pytest.raises(InputError, match="also observed"):
        inference.score_votes(fit, data, known)


def test_ratings_measures():
    """RMSE, MAE and coverage with errors over users: scikit-learn's values, and the delta method's
    error of the root.
    """
    rng = np.random.default_rng(1)
    users, items = np.nonzero(rng.random((30, 20)) < 0.5)
    truth = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20))
    data = pp_models.data.ratings(
        users, items, (truth[users, items] + 0.3 * rng.normal(size=len(users))), shape=(30, 20)
    )
    train, heldout = inference.split_ratings(data, 0.2)
    fit = inference.fit("pmf", train, "map", {"rank": 2}, num_epochs=30)
    found = inference.score_ratings(fit, heldout)
    cells = heldout.matrix.tocoo()
    predicted = inference.predict_ratings(fit, *cells.coords).mean
    assert found.rmse == pytest.approx(metrics.root_mean_squared_error(cells.data, predicted))
    assert found.mae == pytest.approx(metrics.mean_absolute_error(cells.data, predicted))
    named = found.measures
    assert all(
        named[name].value == pytest.approx(getattr(found, name))
        for name in ("rmse", "mae", "log_density", "coverage")
    )
    by_user = [np.where(found.users == u)[0] for u in np.unique(found.users)]
    rng = np.random.default_rng(0)
    again = [
        np.sqrt(
            np.mean(
                found.errors[
                    np.concatenate(
                        [by_user[i] for i in rng.integers(0, len(by_user), len(by_user))]
                    )
                ]
                ** 2
            )
        )
        for _ in range(300)
    ]
    assert named["rmse"].standard_error == pytest.approx(np.std(again), rel=0.25)
    worse = inference.fit("pmf", train, "map", {"rank": 2}, num_epochs=1)
    other = inference.score_ratings(worse, heldout)
    assert (
        other.rmse > found.rmse and other.mae > found.mae and other.log_density < found.log_density
    )


def test_held_out_ratings_are_matched_by_name():
    """Users and items in another order are those of these names; unknown ones are left out with a
    warning, also those that are whole numbers beyond the fitted ones.
    """
    users, items = np.repeat(["al", "bob", "cy"], 3), np.tile(["Heat", "Jaws", "Up"], 3)
    known = pp_models.data.as_data((users, items, np.arange(9.0)), "ratings")
    options = {"progress": False, "num_epochs": 2}
    fit = inference.fit("pmf", known, "map", {"rank": 1}, **options)
    new = pp_models.data.ratings(["bob", "al"], ["Up", "Heat"], [5.0, 3.0])
    wanted = inference.predict_ratings(fit, [0, 1], [0, 2]).mean
    np.testing.assert_allclose(
        inference.score_ratings(fit, new).errors, [3 - wanted[0], 5 - wanted[1]], rtol=1e-5
    )
    more = pp_models.data.ratings(["bob", "dee"], ["Up", "Heat"], [5.0, 3.0])
    with pytest.warns(UserWarning, match="1 of 2 ratings are of users or items not fitted"):
        assert row_scores(fit, more).sizes.tolist() == [0, 1, 0]
    plain = pp_models.data.ratings(*known.matrix.tocoo().coords, np.arange(9.0))
    counted = inference.fit("pmf", plain, "map", {"rank": 1}, **options)
    with pytest.warns(UserWarning, match="1 of 2 ratings are"):
        beyond = pp_models.data.ratings([0, 50], [1, 60], [3.0, 3.0])
        assert inference.score_ratings(counted, beyond).num_ratings == 1
