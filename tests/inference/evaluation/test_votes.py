"""Votes predicted from text and from other votes: how rows are integrated out, on cases small
enough to integrate exactly, and members refitted.
"""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from scipy.special import log_ndtr, ndtr

import inference
from inference.core.posteriors import Mixture
from inference.evaluation import _vote_rows, votes
from pp_models import data as data_
from pp_models import model
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.models import lg_nmf_votes

# One topic: a member who voted on twelve bills, one who never did, and a new bill of three words --


def drawn(seed):
    """Known votes, weights of their bills, words and the new bill's counts, by which it is heavier
    than those: then it matters how sure d2 is.
    """
    rng = np.random.default_rng(seed)
    s = np.abs(rng.normal(size=12))
    known = (rng.normal() * s + rng.normal(size=12) > 0).astype(float)
    d1 = 0.3 + np.abs(rng.normal(size=3))
    return known, s, d1, np.maximum(np.round(3 * d1 + rng.normal(size=3)), 1)


def integral(known, s_known, d1, counts, alpha1, alpha2):
    """H(13) with words and other bills held: sums over fine grids of d2 and s, whose errors are
    below 1e-5.
    """
    d, s = np.linspace(-15, 15, 1501), np.linspace(0, 25, 2001)
    log_d = -0.5 * alpha2 * d**2 + log_ndtr(np.where(known > 0, 1, -1) * d[:, None] * s_known).sum(
        1
    )
    log_s = (counts @ d1) * s - 0.5 * (alpha1 + d1 @ d1) * s**2
    weight_d, weight_s = np.exp(log_d - log_d.max()), np.exp(log_s - log_s.max())
    weight_s[0] /= 2
    return weight_d @ ndtr(d[:, None] * s) @ weight_s / (weight_d.sum() * weight_s.sum())


def mode(known, s_known, alpha2):
    sign = np.where(known > 0, 1, -1)
    return scipy.optimize.minimize_scalar(
        lambda d: 0.5 * alpha2 * d**2 - np.sum(log_ndtr(sign * d * s_known)),
        bounds=(-15, 15),
        method="bounded",
    ).x


@pytest.fixture(scope="module")
def said():
    """(case, alpha1, alpha2) -> rows -> the probabilities of yea of both members, from a point
    estimate that is not fitted but set.
    """

    def two(known):
        return data_.text_and_votes(np.ones((12, 3)), np.stack([known, np.full(12, np.nan)], 1))

    given = {"num_topics": 1, "alpha1": 1.0, "alpha2": 1.0}
    fit = inference.fit(
        "lg_nmf_votes",
        two(np.ones(12)),
        "map",
        given,
        progress=False,
        num_epochs=1,
        devices=jax.local_devices()[:1],
    )

    def answer(case, alpha1, alpha2):
        known, s, d1, counts = case
        hyper = fit.problem.hyper._replace(alpha1=jnp.asarray(alpha1), alpha2=jnp.asarray(alpha2))
        fit.problem = fit.problem._replace(data=two(known), hyper=hyper)
        fit.posterior.values |= {
            "d1": d1[:, None],
            "d2": np.array([[mode(known, s, alpha2)], [0.0]]),
            "s": s[:, None],
        }
        # the largest total is part of a compiled program: a second bill keeps it the same
        bill = data_.text_and_votes(np.stack([counts, np.full(3, 9000.0)]), np.full((2, 2), np.nan))
        return {rows: inference.predict_votes(fit, bill, rows)[0] for rows in votes.ROWS}

    return answer


@pytest.mark.slow
def test_nested_is_nearest_to_the_integral(said):
    """Over six cases nested errs less than gaussian, and gaussian less than plug-in; nested by
    0.015 at most, an expansion's error at a dozen votes. A member who never voted is as likely to
    say yea as nay.
    """
    errors = {rows: [] for rows in votes.ROWS}
    for seed in range(6):
        case = drawn(seed)
        exact = integral(*case, 0.5, 1.0)
        for rows, probability in said(case, 0.5, 1.0).items():
            errors[rows].append(abs(probability[0] - exact))
            np.testing.assert_allclose(probability[1], 0.5, atol=1e-6)
    mean = {rows: np.mean(x) for rows, x in errors.items()}
    assert mean["nested"] < 0.4 * mean["gaussian"] and mean["gaussian"] < 0.7 * mean["plug_in"]
    assert max(errors["nested"]) < 0.015 < max(errors["plug_in"])


@pytest.mark.slow
def test_certain_rows_leave_nothing_to_integrate(said):
    """Words a thousand times as heavy tell s to 1e-3, and a prior of sd 0.01 tells d2: all three
    then say the same to that.
    """
    known, s, d1, counts = drawn(3)
    found = said((known, s, 1000 * d1, np.round(1000 * counts)), 1.0, 1e4)
    np.testing.assert_allclose(found["gaussian"], found["plug_in"], atol=1e-3)
    np.testing.assert_allclose(found["nested"], found["plug_in"], atol=1e-3)


@pytest.mark.slow
def test_single_precision(said):
    """In single precision the three are what they are in double (1e-3), without NaN where d2's is
    far from zero on either side.
    """
    case = drawn(1)
    wanted = said(case, 0.5, 1.0)
    with jax.enable_x64(False):
        found = said(case, 0.5, 1.0)
        far = said((np.ones(12), 50 * case[1], case[2], np.round(100 * case[3])), 0.01, 1e-3)
    for rows in votes.ROWS:
        np.testing.assert_allclose(found[rows], wanted[rows], atol=1e-3)
        assert np.all((far[rows] >= 0) & (far[rows] <= 1))


# What is expanded ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    hyper, data = lg_nmf_votes.example(jax.random.key(0))
    given = hyper._asdict() | {"alpha1": 0.7, "alpha2": 1.3, "bias": True}
    return inference.fit(
        "lg_nmf_votes",
        data,
        "map",
        given,
        progress=False,
        num_epochs=30,
        devices=jax.local_devices()[:1],
    )


@pytest.mark.slow
def test_conditionals_are_the_log_joint(fitted):
    """Of a member and of a bill, up to a constant; their gradients and curvatures are derivatives
    (1e-9: rounding).
    """
    batch, hyper = fitted.data.pack(), fitted.hyper
    values = {site: jnp.asarray(fitted.posterior.mean(site)) + 0.1 for site in ("s", "d1", "d2")}
    shared = votes._stats(fitted.model, values)
    members, bills = (
        _vote_rows.members_given(fitted.model, hyper, shared, values["s"], batch),
        _vote_rows.bills_given(fitted.model, hyper, shared, batch),
    )
    for site, rest in (
        ("d2", members._replace(sign=members.sign[1], offset=members.offset[1])),
        ("s", bills._replace(linear=bills.linear[1], sign=bills.sign[1])),
    ):

        def height(x, site=site):
            return model.log_joint(
                fitted.model, hyper, values | {site: values[site].at[1].set(x)}, batch
            )

        x = values[site][1]
        expand = jax.jit(_vote_rows.expand)
        before, gradient, curvature = expand(rest, x)
        np.testing.assert_allclose(
            expand(rest, x + 0.3)[0] - before,
            jax.jit(height)(x + 0.3) - jax.jit(height)(x),
            rtol=1e-9,
        )
        np.testing.assert_allclose(gradient, jax.jit(jax.grad(height))(x), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(
            curvature, -jax.jit(jax.hessian(height))(x), rtol=1e-8, atol=1e-9
        )


def test_pair_is_expanded_rightly(fitted):
    """Gradient and Hessian of log p(d2_i, log s_j, B_ij | the rest) against automatic
    differentiation (1e-9: rounding).
    """
    batch = fitted.data.pack()
    shared = votes._stats(fitted.model, fitted.posterior.values)
    members = _vote_rows.members_given(
        fitted.model, fitted.hyper, shared, jnp.asarray(fitted.posterior.mean("s")), batch
    )
    bills = _vote_rows.bills_given(fitted.model, fitted.hyper, shared, batch)
    member, bill = (
        members._replace(sign=members.sign[0], offset=members.offset[0]),
        bills._replace(linear=bills.linear[2], sign=bills.sign[2]),
    )
    x = jnp.array([0.4, -0.8, 0.2, -0.5])
    for sign in (1.0, -1.0):
        _, gradient, curvature = jax.jit(_vote_rows.together)(member, bill, sign, 0.3, x)
        height = lambda x, sign=sign: _vote_rows.together(member, bill, sign, 0.3, x)[0]  # noqa: E731
        np.testing.assert_allclose(gradient, jax.jit(jax.grad(height))(x), rtol=1e-9)
        np.testing.assert_allclose(
            curvature, -jax.jit(jax.hessian(height))(x), rtol=1e-8, atol=1e-9
        )


def test_cut_off_far_from_zero_is_the_normal():
    """Coordinates ten sd from zero have the mean and the whole covariance of their normal (1e-9:
    the mass cut off); one alone is exact anywhere.
    """
    precision = jnp.array([[4.0, 1.5], [1.5, 2.0]])
    here = _vote_rows.Expansion(0.0, jnp.zeros(2), precision)
    found = _vote_rows.truncated(jnp.array([10.0, 12.0]), here)
    np.testing.assert_allclose(
        found.second - jnp.outer(found.first, found.first), jnp.linalg.inv(precision), rtol=1e-8
    )
    here = _vote_rows.Expansion(0.0, jnp.array([-1.0]), jnp.array([[2.0]]))
    alone = _vote_rows.truncated(jnp.array([0.2]), here)
    truth = scipy.stats.truncnorm(0.3 * np.sqrt(2), np.inf, loc=-0.3, scale=np.sqrt(0.5))
    np.testing.assert_allclose(
        [alone.first[0], alone.second[0, 0] - alone.first[0] ** 2],
        [truth.mean(), truth.var()],
        rtol=1e-8,
    )


# Grids --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_grid_points_are_averaged_by_weight(fitted):
    """H(13): the probabilities of a grid are those of its points, weighted (1e-9: rounding); each
    between 0 and 1.
    """

    def factors(size):
        rows = {site: jnp.asarray(fitted.posterior.mean(site)) for site in ("s", "d1", "d2")}
        precision = size * jnp.broadcast_to(jnp.eye(2), (len(rows["d2"]), 2, 2))
        positive = {
            site: Pair(size * rows[site], size * jnp.ones_like(rows[site])) for site in ("s", "d1")
        }
        return positive | {"d2": Pair(size * rows["d2"], -0.5 * precision)}

    points, fit = [factors(4.0), factors(0.5)], copy.copy(fitted)
    for rows in (
        "plug_in",
        "gaussian",
    ):  # nested is averaged by the same line, and costs a compilation
        answers = []
        for chosen, weights in (([0], [1.0]), ([1], [1.0]), ([0, 1], [0.3, 0.7])):
            fit.posterior = Mixture(
                fitted.problem,
                (),
                np.zeros((len(chosen), 0)),
                [points[m] for m in chosen],
                np.array(weights),
            )
            answers.append(inference.predict_votes(fit, fitted.data, rows))
        np.testing.assert_allclose(answers[2], 0.3 * answers[0] + 0.7 * answers[1], rtol=1e-9)
        assert (
            np.all((answers[2] > 0) & (answers[2] < 1)) and np.ptp(answers[0] - answers[1]) > 0.01
        )


# Bills and members --------------------------------------------------------------------------------


def least_squares(counts, d1, alpha1):
    size = d1.shape[1]
    stacked = np.concatenate([d1, np.sqrt(alpha1) * np.eye(size)])
    return np.stack(
        [scipy.optimize.nnls(stacked, np.concatenate([row, np.zeros(size)]))[0] for row in counts]
    )


@pytest.fixture(scope="module")
def planted():
    rng = np.random.default_rng(0)
    d1, d2 = np.abs(rng.normal(size=(40, 12))), rng.normal(size=(6, 12))
    counts = np.maximum(
        np.round(4 * np.abs(rng.normal(size=(25, 12))) @ d1.T + rng.normal(size=(25, 40))), 0
    )
    data = data_.text_and_votes(counts, np.where(rng.random((25, 6)) < 0.5, 1.0, 0.0))
    given = {"num_topics": 12, "alpha1": 0.5, "alpha2": 1.0}
    fit = inference.fit(
        "lg_nmf_votes",
        data,
        "map",
        given,
        progress=False,
        num_epochs=1,
        devices=jax.local_devices()[:1],
    )
    fit.posterior.values |= {"d1": d1, "d2": d2}
    return fit, counts


def test_votes_on_new_bills_are_from_nonnegative_least_squares(planted):
    """At a point, a bill without votes has the s of NNLS with a ridge, and the probability of yea
    is Phi(d2's): the default for a point.
    """
    fit, counts = planted
    found = inference.predict_votes(fit, data_.text_and_votes(counts, np.full((25, 6), np.nan)))
    s = least_squares(counts, fit.posterior.values["d1"], 0.5)
    np.testing.assert_allclose(found, ndtr(s @ fit.posterior.values["d2"].T), atol=1e-3)


def test_refitted_members_explain_votes_by_the_text(planted):
    """Bills have the NNLS weights of their text, tastes no slope left given these; the fit itself
    is as before.
    """
    fit, counts = planted
    before = fit.posterior.values["d2"].copy()
    new = inference.refit_members(fit, alpha2=3.0)
    s, d2 = new.posterior.values["s"], new.posterior.values["d2"]
    np.testing.assert_allclose(s, least_squares(counts, fit.posterior.values["d1"], 0.5), atol=1e-2)
    sign = np.where(fit.data.votes.toarray() > 0, 1, -1)
    t = sign * (s @ d2.T)
    slope = (sign * np.exp(scipy.stats.norm.logpdf(t) - log_ndtr(t))).T @ s - 3.0 * d2
    np.testing.assert_allclose(slope, 0, atol=1e-6)  # Newton's method has come to rest
    assert float(new.hyper.alpha2) == 3.0 and float(fit.hyper.alpha2) == 1.0
    np.testing.assert_array_equal(fit.posterior.values["d2"], before)


# What users meet ----------------------------------------------------------------------------------


def test_bad_requests(fitted):
    """Unknown options, fits that have no mode, and other words or members are refused in a
    sentence.
    """
    data = fitted.data
    with pytest.raises(InputError, match="Unknown rows 'nest'"):
        inference.predict_votes(fitted, data, "nest")
    with pytest.raises(InputError, match="use the same vocabulary and members"):
        inference.predict_votes(fitted, data_.text_and_votes([[1, 2]], [[1.0]]))
    with pytest.raises(InputError, match="alpha2 must be positive"):
        inference.refit_members(fitted, alpha2=-1.0)
    other = inference.fit(
        "lg_nmf_votes",
        data,
        "cavi",
        {"num_topics": 2, "alpha1": 1.0, "alpha2": 1.0},
        progress=False,
        num_epochs=1,
    )
    with pytest.raises(InputError, match="cavi does not"):
        inference.predict_votes(other, data, "nested")
    with pytest.raises(InputError, match="needs a fit by map of a model of votes"):
        inference.refit_members(other)


def test_stored_fits_predict_what_they_can(tmp_path, fitted):
    """Without its data a point says plug-in probabilities and asks for the data where curvatures
    need them.
    """
    stored = inference.load(fitted.save(tmp_path / "fit"))
    np.testing.assert_allclose(
        inference.predict_votes(stored, fitted.data),
        inference.predict_votes(fitted, fitted.data),
        rtol=1e-6,
    )
    with pytest.raises(InputError, match="loaded without: pass data="):
        inference.predict_votes(stored, fitted.data, "gaussian")


def test_tf_idf():
    """log(1 + count) times rarity in the reference, rows of the length asked for, rounded; another
    vocabulary is refused.
    """
    found = data_.tf_idf(
        [[3, 1, 0], [0, 0, 7]], 1000.0, [[1, 0, 0], [1, 1, 0], [5, 0, 2]]
    ).toarray()
    rarity = np.log(4 / np.array([4, 2, 2])) + 1
    raw = np.log1p([[3, 1, 0], [0, 0, 7]]) * rarity
    np.testing.assert_allclose(
        found, 1000 * raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=0.5
    )
    np.testing.assert_array_equal(found, np.round(found))
    with pytest.raises(InputError, match="same vocabulary"):
        data_.tf_idf([[1, 2]], 50.0, [[1, 2, 3]])
    with pytest.raises(InputError, match="length must be"):
        data_.tf_idf([[1, 2]], 0)
