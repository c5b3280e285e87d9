"""Laplace and the grid: exact on Gaussian models, and right where the paper's version is not."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

import inference
from inference.engines import _ascent as ascent
from inference.engines import _laplace, _mode_search, inla, laplace
from inference.engines import _path as path
from inference.run import fit as fitting
from pp_models import data as data_
from pp_models import families as fam
from pp_models import model as base
from pp_models import models as discovery
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.model import Marginal, Model, documents
from pp_models.models import _latent_gaussian as lg
from pp_models.models import lg_nmf, lg_nmf_votes

# A linear Gaussian model with a known marginal: y_j ~ N(W s_j, I), s_j ~ N(0, I / alpha1) -----

W = np.random.default_rng(3).normal(size=(4, 2))


class Hyper(NamedTuple):
    num_topics: int = 2
    alpha1: float | None = None
    a0: float = 3.0
    b0: float = 2.0


def generate(hyper, data):
    alpha1 = lg.sample_precision(hyper, "alpha1")
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, 2, False))
        numpyro.sample("y", dist.Normal(s @ W.T, 1.0).to_event(1), obs=data.dense)


def log_local(hyper, t, batch, key=None):
    crossed = jnp.einsum("nv,vk,nk->n", batch.dense, W, t["s"].first) - 0.5 * jnp.einsum(
        "nkl,kl->n", t["s"].second, W.T @ W
    )
    rows = crossed - 0.5 * jnp.sum(batch.dense**2, 1) - 2 * jnp.log(2 * jnp.pi)
    return batch.sum(rows + lg.log_rows(t["s"], lg.precision(hyper, t, "alpha1"), False))


def init(key, hyper, data):
    known = {name: Pair(jnp.full(1, 10.0), -jnp.full(1, 10.0)) for name in lg.latent(hyper)}
    return {"s": lg.around(jnp.zeros((data.num_rows, 2)), 1.0, False), **known}


def linear_example(key):
    rng = np.random.default_rng(0)
    return Hyper(), data_.dense(rng.normal(size=(12, 2)) * 0.7 @ W.T + rng.normal(size=(12, 4)))


LINEAR = Model(
    Hyper=Hyper,
    generate=generate,
    families={"s": fam.normal, "alpha1": fam.gamma},
    log_global=lg.log_precisions,
    log_local=log_local,
    init=init,
    predict=lambda hyper, values: values["s"] @ W.T,
    symmetry="none",
    example=linear_example,
    marginal=Marginal(("alpha1",)),
)


@pytest.fixture
def linear(monkeypatch):
    """The model as if it had a file of its own."""
    real = discovery.load
    monkeypatch.setattr(
        discovery, "load", lambda name: LINEAR if name in ("linear", LINEAR.name) else real(name)
    )
    return linear_example(None)[1]


def exact(data, theta):
    """log p(D, log alpha1)."""
    covariance = np.eye(4) + W @ W.T / np.exp(theta)
    rows = (
        scipy.stats.multivariate_normal(np.zeros(4), covariance)
        .logpdf(data.values.astype(float))
        .sum()
    )
    return rows + scipy.stats.gamma(3.0, scale=0.5).logpdf(np.exp(theta)) + theta


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "full" else name
        for name in _laplace.METHODS
    ],
)
def test_linear_gaussian_marginal_is_exact(linear, method):
    """log p~(theta | D) is log p(D, theta) by every method (1e-6), because rows are normal."""
    fit = inference.fit("linear", linear, "inla", progress=False, method=method, num_sweeps=100)
    wanted = np.array([exact(linear, theta[0]) for theta in fit.posterior.theta])
    weights = np.exp(wanted - wanted.max())
    np.testing.assert_allclose(fit.posterior.weights, weights / weights.sum(), rtol=1e-6)
    evidence, _ = scipy.integrate.quad(
        lambda theta: np.exp(exact(linear, theta) - wanted.max()), -8, 8, epsabs=0, epsrel=1e-10
    )
    np.testing.assert_allclose(
        fit.posterior.log_evidence, np.log(evidence) + wanted.max(), atol=3e-3
    )  # tails below 1e-3 of the top are left out


def test_grid_moments_are_those_of_the_integral(linear):
    """alpha1 and a row's mean against one-dimensional integration; finer grids agree better."""
    fit = inference.fit("linear", linear, "inla", progress=False, spacing=0.5)

    def integral(f):
        top = max(exact(linear, t) for t in np.linspace(-3, 3, 61))
        parts = [
            scipy.integrate.quad(lambda t, g=g: g(t) * np.exp(exact(linear, t) - top), -8, 8)[0]
            for g in (f, lambda t: 1.0)
        ]
        return parts[0] / parts[1]

    np.testing.assert_allclose(fit.posterior.mean("alpha1"), integral(np.exp), rtol=5e-3)
    second = integral(lambda t: np.exp(2 * t))
    np.testing.assert_allclose(
        fit.posterior.sd("alpha1"), np.sqrt(second - integral(np.exp) ** 2), rtol=3e-2
    )
    y = linear.values.astype(float)[0]
    row = integral(lambda t: np.linalg.solve(np.exp(t) * np.eye(2) + W.T @ W, W.T @ y)[0])
    np.testing.assert_allclose(fit.posterior.mean("s")[0, 0], row, rtol=1e-3)
    draws = fit.posterior.sample(jax.random.key(0), 4000)
    error = fit.posterior.sd("s") / np.sqrt(4000)
    assert np.all(np.abs(draws["s"].mean(0) - fit.posterior.mean("s")) < 5 * error)


def test_weights_do_not_depend_on_the_parametrisation(linear):
    """The same expectation by integrating over theta itself in cells of its own width."""
    posterior = inference.fit("linear", linear, "inla", progress=False, spacing=0.25).posterior
    theta = np.sort(np.exp(posterior.theta[:, 0]))
    height = np.exp(
        [exact(linear, np.log(t)) - np.log(t) - posterior.log_evidence for t in theta]
    )  # the density of theta
    widths = np.gradient(theta)
    np.testing.assert_allclose(
        np.sum(widths * height * theta) / np.sum(widths * height),
        posterior.mean("alpha1")[0],
        rtol=1e-2,
    )


# The mode -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["log", "paper"])
def test_balance_is_the_best_scaling(method):
    """No scaling of a factor against the other raises log p(x) + lambda log c."""
    hyper, data = lg_nmf.example(jax.random.key(0))
    problem = fitting.make_problem(
        "lg_nmf", data, hyper._replace(alpha1=0.5), devices=jax.local_devices()[:1]
    )
    start = base.simulate(problem.model, problem.hyper, data.pack(), jax.random.key(1))
    rows = {"d1": data.num_columns, "s": data.num_rows}
    volumes = {
        site: jnp.full(2, float(size if method == "log" else 0)) for site, size in rows.items()
    }
    values = ascent.balanced(
        problem.model, problem.hyper, {site: start[site] for site in ("d1", "s")}, volumes
    )
    volume = data.num_columns - data.num_rows if method == "log" else 0

    def height(c):
        scaled = {"d1": values["d1"] * c, "s": values["s"] / c}
        return base.log_joint(problem.model, problem.hyper, scaled, data.pack()) + volume * jnp.sum(
            jnp.log(c)
        )

    np.testing.assert_allclose(jax.grad(height)(jnp.ones(2)), 0, atol=1e-8)


def planted(n, p, K, seed=0):
    rng = np.random.default_rng(seed)
    rate = 4 * np.abs(rng.normal(size=(n, K))) @ np.abs(rng.normal(size=(p, K))).T / np.sqrt(K)
    return data_.counts(np.maximum(np.round(rate + rng.normal(size=(n, p))), 0))


def log_alpha(posterior, name="alpha1"):
    theta = posterior.theta[:, posterior.names.index(name)]
    mean = np.average(theta, weights=posterior.weights)
    return mean, np.sqrt(np.average((theta - mean) ** 2, weights=posterior.weights))


@pytest.mark.slow
def test_grid_agrees_with_gibbs_and_the_papers_does_not():
    """n = 40, p = 200, K = 3: the default is right, H is off by log((n + p)^2 / 4 n p).

    The default lies within 0.3 posterior sd and 10 % of the width, H within a tenth of its offset.

    The chains' 10,000 effective draws give the mean an error of 0.01 sd.
    """
    data, hyper = planted(40, 200, 3), {"num_topics": 3}
    shared = {"key": jax.random.key(1), "progress": False}
    chain = inference.fit(
        "lg_nmf", data, "gibbs", hyper, num_samples=8000, num_warmup=1000, **shared
    ).posterior.draws["alpha1"]
    mean, sd = np.log(chain).mean(), np.log(chain).std()
    ours = log_alpha(inference.fit("lg_nmf", data, "inla", hyper, **shared).posterior)
    papers = log_alpha(
        inference.fit("lg_nmf", data, "inla", hyper, method="paper", **shared).posterior
    )
    assert abs(ours[0] - mean) < 0.3 * sd and 0.9 < ours[1] / sd < 1.1
    np.testing.assert_allclose(papers[0] - mean, np.log(240**2 / (4 * 40 * 200)), rtol=0.1)


# Behaviour that users see ---------------------------------------------------------------------


@pytest.mark.slow
def test_two_hyper_parameters():
    """The grid is a plane about the mode with small weights at its edge, its labels aligned."""
    hyper, data = lg_nmf_votes.example(jax.random.key(0))
    fit = inference.fit("lg_nmf_votes", data, "inla", hyper, progress=False, weights="laplace")
    posterior = fit.posterior
    assert posterior.names == ("alpha1", "alpha2") and posterior.theta.shape[1] == 2
    np.testing.assert_allclose(posterior.weights.sum(), 1)
    known = {tuple(np.round(t, 6)) for t in posterior.theta}
    assert len(known) == len(posterior.weights) > 9
    assert fit.history["converged"].mean() > 0.9
    top = posterior.values(int(np.argmax(posterior.weights)))["d1"]
    for m in np.flatnonzero(posterior.weights > 0.02):
        assert np.corrcoef(posterior.values(m)["d1"].ravel(), top.ravel())[0, 1] > 0.9
    for site in fit.model.families:
        assert np.all(np.isfinite(posterior.mean(site))) and np.all(posterior.sd(site) > 0)


def test_save_and_load(tmp_path, linear):
    fit = inference.fit("linear", linear, "inla", progress=False)
    again = inference.load(fit.save(tmp_path / "fit"), linear)
    for site in ("s", "alpha1"):
        np.testing.assert_array_equal(again.posterior.mean(site), fit.posterior.mean(site))
    assert again.posterior.log_evidence == fit.posterior.log_evidence


def test_laplace_is_the_grids_top(linear):
    """One point at the mode of p~ with normals there; given hyper-parameters are kept."""
    fit = inference.fit("linear", linear, "laplace", progress=False)
    best = scipy.optimize.minimize_scalar(
        lambda t: -exact(linear, t), bounds=(-5, 5), method="bounded"
    ).x
    np.testing.assert_allclose(np.log(fit.posterior.mean("alpha1")), best, atol=0.1)
    given = inference.fit("linear", linear, "laplace", {"alpha1": 0.5}, progress=False)
    precision = 0.5 * np.eye(2) + W.T @ W
    np.testing.assert_allclose(
        given.posterior.mean("s")[0],
        np.linalg.solve(precision, W.T @ linear.values[0].astype(float)),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        given.posterior.sd("s")[0], np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-6
    )


@pytest.mark.slow
def test_unrested_points_are_reported():
    """A warning names grid points at which coordinate ascent was cut short."""
    data = planted(20, 30, 3)
    with pytest.warns(UserWarning, match="did not come to rest"):
        inference.fit(
            "lg_nmf",
            data,
            "inla",
            {"num_topics": 3},
            progress=False,
            num_sweeps=4,
            num_epochs=12,
            weights="laplace",
        )


@pytest.mark.parametrize(("weights", "num_epochs"), [("laplace", 1), ("path", 3)])
def test_runs_cut_short_are_reported(linear, weights, num_epochs):
    """Between the search and the grid the queue is empty, but the run has not ended."""
    with pytest.warns(UserWarning, match="cut short"):
        inference.fit(
            "linear", linear, "inla", progress=False, weights=weights, num_epochs=num_epochs
        )


@pytest.mark.parametrize(
    ("model", "hyper", "options", "complaint"),
    [
        ("lda", {"num_topics": 2}, {}, "lda declares none that may be"),
        ("lg_nmf", {"alpha1": 1.0}, {}, "0 of lg_nmf are unknown"),
        ("lg_nmf", {}, {"method": "exact"}, "method"),
        ("lg_nmf", {}, {"spacing": 9.0}, "spacing"),
    ],
)
def test_bad_requests(model, hyper, options, complaint):
    """Grids that the model cannot have, and unknown options, are refused before compiling."""
    with pytest.raises(InputError, match=complaint):
        inference.fit(model, planted(5, 6, 2), "inla", hyper, progress=False, **options)


def test_grid_grows_until_weights_are_small():
    """On a made-up surface: all neighbours of heavy points are tried, none of light ones."""
    state = _mode_search.State(
        (), (), np.zeros(2), np.ones(2), np.array([[1.0, 0.3], [0.0, 0.5]]), {}
    )
    for _ in range(50):
        state = inla.grow(state, 1.0)
        if not state.queue:
            break
        z = [np.linalg.solve(state.spread, theta) for theta in state.queue]
        new = tuple(
            _laplace.Found(theta, float(-0.5 * u @ u), None, {}, 1, True)
            for theta, u in zip(state.queue, z, strict=True)
        )
        state = state._replace(found=(*state.found, *new), queue=())
    cells = inla.on_grid(state, 1.0)
    heavy = {
        (i, j)
        for i in range(-9, 10)
        for j in range(-9, 10)
        if -0.5 * (i * i + j * j) > np.log(1e-3)
    }
    assert heavy < set(cells) and len(cells) < 2.2 * len(heavy)


def test_newton_finds_the_top():
    """Finds the top of a tilted quadratic from three away in a few stencils, with its sds."""
    precision = np.array([[4.0, 1.5], [1.5, 2.0]])

    def height(theta):
        return float(-0.5 * (theta - 3) @ precision @ (theta - 3))

    state = _mode_search.State(
        (),
        _mode_search.stencil(np.zeros(2), np.full(2, 0.25)),
        np.zeros(2),
        np.full(2, 0.25),
        None,
        {},
    )
    for _ in range(10):
        new = tuple(
            _laplace.Found(theta, height(theta), None, {}, 1, True) for theta in state.queue
        )
        state = _mode_search.advance(state._replace(found=(*state.found, *new), queue=()), 2)
        if state.spread is not None:
            break
    np.testing.assert_allclose(state.centre, 3, atol=0.1)
    np.testing.assert_allclose(state.spread @ state.spread.T, np.linalg.inv(precision), rtol=1e-6)


@pytest.mark.slow
def test_rows_that_say_they_rest_do():
    """Thirty more sweeps move the mode by less than 1 % of a site's mean size.

    Ascent stops at gains of 1e-4 nats, some 0.03 % here. The balance may lower the objective on
    the way; ascent that takes this for a fall stops 20 to 40 % from the top.
    """
    rng = np.random.default_rng(0)
    words, members, bills = (
        np.abs(rng.normal(size=(40, 2))),
        rng.normal(size=(20, 2)),
        np.abs(rng.normal(size=(30, 2))),
    )
    counts = np.maximum(np.round(4 * bills @ words.T / np.sqrt(2) + rng.normal(size=(30, 40))), 0)
    data = data_.text_and_votes(
        counts, (bills @ members.T + rng.normal(size=(30, 20)) > 0).astype(float)
    )
    problem, copies = _mode_search.in_double_precision(
        fitting.make_problem("lg_nmf_votes", data, {"num_topics": 2})
    )
    options = laplace.Options()

    def more(x, hyper, model):
        return jax.lax.fori_loop(
            0, 30, lambda i, x: ascent.sweep(model, hyper, x, copies[0], "log_mode", 1.0)[0], x
        )

    swept = jax.jit(more, static_argnames=("model",))
    with jax.enable_x64(True):
        centre, start = _mode_search.first_theta(problem, jax.random.key(0), copies[0], options)
        found = (_laplace.evaluate(problem, centre, start, copies[0], options)(),)
        for step in ((-0.3, -1.5), (-0.3, -0.3), (0.3, -1.5), (0.3, -0.3), (0.3, 0.3)):
            theta = centre + np.array(step)
            one = _laplace.evaluate(
                problem, theta, _mode_search.nearest(found, theta).point, copies[0], options
            )()
            given = _laplace.fixed(problem, theta)
            later = swept(
                {site: jnp.asarray(x) for site, x in one.point.items()}, given.hyper, given.model
            )
            assert one.converged
            for site, x in one.point.items():
                np.testing.assert_allclose(later[site], x, atol=0.01 * np.mean(np.abs(x)))
            found = (*found, one)


# Weights along slopes -------------------------------------------------------------------------


def test_surface_is_the_integral_of_its_slopes():
    """Exact slopes of a cubic in two dimensions give back its heights and its top."""
    centre, spread, off = (
        np.array([0.3, -2.0]),
        np.array([[0.2, 0.1], [-0.1, 0.4]]),
        np.array([0.05, -0.1]),
    )
    precision = np.linalg.inv(spread @ spread.T)

    def height(theta):
        u = theta - centre - off
        return -0.5 * u @ precision @ u + 0.8 * u[0] ** 2 * u[1]

    places = path.design(centre, spread, True)
    slopes = [
        path.Slope(theta, np.asarray(jax.grad(height)(jnp.asarray(theta))), np.ones(2), {})
        for theta in places
    ]
    surface, top, _ = path.weigh(centre, spread, slopes)
    np.testing.assert_allclose(
        np.diff(surface.height(np.stack(places))),
        np.diff([height(theta) for theta in places]),
        atol=1e-9,
    )
    np.testing.assert_allclose(top, centre + off, atol=0.02)


def test_surfaces_that_turn_up_are_not_used():
    """A cubic that noise makes rise at its end is replaced by the quadratic."""
    centre, spread = np.zeros(1), np.ones((1, 1))
    for bend in (0.5, 0.18):  # the second goes down for five standard deviations, and up again
        slopes = [
            path.Slope(t, -t + bend * t**2, np.ones(1), {})
            for t in path.design(centre, spread, True)
        ]
        assert (
            path.fit_surface(centre, spread, slopes, 3).height(np.array([20.0])) > 0
        )  # it does turn up
        surface, _, _ = path.weigh(centre, spread, slopes)
        assert surface.powers.max() == 2


@pytest.mark.slow
def test_weights_along_slopes_are_the_posterior(linear):
    """The known posterior of alpha1 in the linear Gaussian model: mean within 0.2 sd, width 10 %.

    Eight runs of 500 nearly independent draws know the slope to 0.02 of its sd.
    """
    posterior = inference.fit("linear", linear, "inla", progress=False, weights="path").posterior
    theta = np.linspace(-4, 6, 2001)
    density = np.exp([exact(linear, t) for t in theta] - max(exact(linear, t) for t in theta))
    mean = np.average(theta, weights=density)
    sd = np.sqrt(np.average((theta - mean) ** 2, weights=density))
    found = log_alpha(posterior)
    assert abs(found[0] - mean) < 0.2 * sd and 0.9 < found[1] / sd < 1.1


@pytest.mark.slow
def test_without_signal_the_grid_warns_and_agrees_with_gibbs():
    """On noise, the warning says that Laplace is off, and slopes are within 0.3 sd of Gibbs."""
    rng = np.random.default_rng(0)
    data = data_.counts(np.maximum(np.round(rng.normal(size=(60, 150)) + 0.3), 0))
    options = {"key": jax.random.key(1), "progress": False}
    chain = np.log(
        inference.fit(
            "lg_nmf", data, "gibbs", {"num_topics": 5}, num_samples=4000, **options
        ).posterior.draws["alpha1"]
    )
    with pytest.warns(UserWarning, match="disagree on alpha1"):
        found = log_alpha(
            inference.fit("lg_nmf", data, "inla", {"num_topics": 5}, **options).posterior
        )
    assert abs(found[0] - chain.mean()) < 0.3 * chain.std() and 0.9 < found[1] / chain.std() < 1.1
    laplaces = log_alpha(
        inference.fit(
            "lg_nmf", data, "inla", {"num_topics": 5}, weights="laplace", **options
        ).posterior
    )
    assert abs(laplaces[0] - chain.mean()) > chain.std()
