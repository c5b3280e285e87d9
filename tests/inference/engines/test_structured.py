"""Laws of `structured`: targets against quadrature and closed forms, widths against a posterior.

The model of this file has a Gaussian posterior in which rows and the global site are strongly
correlated: a level b, an effect z of each row, and noise of the row's observation,
y_n ~ N(b + z_n, NOISE), z_n ~ N(0, SPREAD), b ~ N(0, 1 / PRECISION).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special

import inference
import pp_models
from inference.core import objective as obj
from inference.core.structured import Structured, draw_statistics
from inference.engines import _minibatch as mb
from inference.engines import structured
from inference.engines._natural_step import natural_step
from inference.run import fit as fitting
from pp_models import families as fam
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.model import Model, as_arrays, documents
from pp_models.model.hyper import Positive

SPREAD, NOISE, PRECISION = 3.0, 1.0, 0.5
ROWS = 6


class Hyper(NamedTuple):
    precision: Positive = PRECISION


def generate(hyper, data):
    with numpyro.plate("levels", 1):
        b = numpyro.sample("b", dist.Normal(0, hyper.precision**-0.5).expand([1]).to_event(1))
    with documents(data):
        z = numpyro.sample("z", dist.Normal(0, SPREAD**0.5).expand([1]).to_event(1))
        numpyro.sample("y", dist.Normal(b + z, NOISE**0.5).to_event(1), obs=data.dense)


def _prior(precision):
    return Pair(jnp.zeros((1, 1)), -0.5 * jnp.asarray(precision).reshape(1, 1, 1))


def log_global(hyper, t):
    return jnp.sum(fam.log_prior(fam.normal, _prior(hyper.precision), t["b"]))


def log_local(hyper, t, batch, key=None):
    b, z, y = t["b"], t["z"], batch.dense[:, 0]
    square = (
        y**2
        - 2 * y * (b.first[0, 0] + z.first[:, 0])
        + b.second[0, 0, 0]
        + 2 * b.first[0, 0] * z.first[:, 0]
        + z.second[:, 0, 0]
    )
    prior = fam.log_prior(fam.normal, _prior(1 / SPREAD), z)
    return batch.sum(prior - 0.5 * (square / NOISE + jnp.log(2 * jnp.pi * NOISE)))


def init(key, hyper, data):
    rows = jnp.zeros((data.num_rows, 1)), jnp.full((data.num_rows, 1, 1), -0.5)
    return {"b": Pair(jnp.full((1, 1), 0.3), jnp.full((1, 1, 1), -1.0)), "z": Pair(*rows)}


def predict(hyper, values):
    return values["b"] + values["z"]


def example(key):
    y = np.random.default_rng(4).normal(1.5, 2.0, (ROWS, 1))
    return Hyper(), pp_models.data.dense(y)


MODEL = Model.of(globals(), families={"z": fam.normal, "b": fam.normal}, symmetry="none")


def toy():
    hyper, data = MODEL.example(jax.random.key(0))
    return obj.Problem(MODEL, as_arrays(hyper), data, tuple(jax.local_devices()[:1]))


def settings(problem, **given):
    options = structured.Options()._replace(
        batch_size=problem.data.num_rows, num_local=500, local_tolerance=1e-10, **given
    )
    return options


def run(problem, options, steps, shared=None, key=0):
    """The algorithm's state after some steps on all rows."""
    algorithm = structured.build(problem, options)
    state, batches = algorithm.init(jax.random.key(1), shared or {}), (problem.data.pack(),)
    for number in range(steps):
        state, _ = algorithm.step(jax.random.fold_in(jax.random.key(key), number), state, batches)
    return algorithm.posterior(state), state


def exact_level():
    """Mean and variance of b under the posterior: observations about b have both variances."""
    y = np.asarray(MODEL.example(None)[1].values)
    variance = 1 / (PRECISION + ROWS / (SPREAD + NOISE))
    return variance * y.sum() / (SPREAD + NOISE), variance


def test_widths_are_the_posteriors_where_mean_fields_are_half():
    """The level's precision, and the widths of rows given draws of it, are exact in the limit.

    The averaged gradient ends at the precision of mean field, PRECISION + ROWS / NOISE: half the
    width. Over seeds, 250 steps leave a noise of 4 % in the width and 8 % of it in the mean; four
    times that is allowed. In this conjugate model the structured bound is at most the log evidence,
    and nearly that.
    """
    problem = toy()
    mean, variance = exact_level()
    options = settings(problem, gradient="exact", num_draws=4, kappa=0.85)
    found, _ = run(problem, options, 250)
    assert abs(found.sd("b").item() / variance**0.5 - 1) < 0.16
    assert abs(found.mean("b").item() - mean) < 0.32 * variance**0.5
    share = SPREAD / (SPREAD + NOISE)
    rows = (share * NOISE + share**2 * variance) ** 0.5
    np.testing.assert_allclose(found.sd("z"), rows, rtol=0.2)
    draws = found.sample(jax.random.key(2), 2000)
    sums = (draws["b"] + draws["z"]).mean((1, 2))  # rows fall where the level rises
    y = np.asarray(problem.data.values)
    exact = ((1 - share) ** 2 * variance + share * NOISE / ROWS) ** 0.5
    assert abs(sums.std() / exact - 1) < 0.15
    covariance = SPREAD * np.eye(ROWS) + NOISE * np.eye(ROWS) + 1 / PRECISION
    evidence = -0.5 * (y.T @ np.linalg.solve(covariance, y)).item()
    evidence -= 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    assert evidence - 0.2 < found.bound() + 5 * found.bound_error()
    assert found.bound() < evidence + 5 * found.bound_error()
    averaged, _ = run(problem, settings(problem, gradient="averaged", kappa=0.0), 3)
    assert abs(averaged.sd("b").item() * (PRECISION + ROWS / NOISE) ** 0.5 - 1) < 1e-6
    assert averaged.sd("b").item() < 0.6 * variance**0.5


def test_exact_targets_average_to_the_natural_gradient():
    """L_n is quadratic here: from any q the target's average is the exact natural parameter, to
    five standard errors. The statistics at E[t] in place of draws, and draws that do not move, miss
    the precision by far more.
    """
    problem, (mean, variance) = toy(), exact_level()
    shared = {"b": Pair(jnp.full((1, 1), 0.8), jnp.full((1, 1, 1), -0.6))}
    options = settings(problem, gradient="exact", num_draws=1, kappa=0.0, tau=1.0)
    batches, draws = (problem.data.pack(),), []
    state = mb.State(shared, problem.hyper, 0)
    for seed in range(400):
        given = problem, options, jax.random.key(seed), state, batches
        solved = _targets(*given, True)
        draws.append([solved["b"].first.item(), solved["b"].second.item()])
    error = np.std(draws, 0) / np.sqrt(len(draws))
    truth = np.array([mean / variance, -0.5 / variance])
    assert np.all(np.abs(np.mean(draws, 0) - truth) < 5 * error)
    plain = _targets(problem, options, jax.random.key(0), state, batches, False)["b"].second.item()
    assert abs(plain - truth[1]) > 8 * error[1]


def _targets(problem, options, key, state, batches, is_exact):
    """The targets of a step: what it leads to at rate 1, without the check of the domain."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    given = problem, state.hyper, state.shared, batches, rows, problem.data.num_rows
    draw_key, key = jax.random.split(key)
    drawn = draw_statistics(problem.model, draw_key, state.shared)
    solved = mb.solve(*given, drawn=drawn)
    found = solved.gradients
    if is_exact:
        center = mb.solve(*given).gradients
        found = (structured.exact(problem.model, key, state.shared, drawn, found, center),)
    return mb.ascend(solved, state.shared, gradients=found)


def tiny_lda():
    data = pp_models.data.counts(np.array([[3, 1], [0, 4], [2, 2]]))
    hyper = {"num_topics": 2, "alpha": 0.7, "eta": 1.5}
    return fitting.make_problem("lda", data, hyper, jax.local_devices()[:1])


@pytest.mark.parametrize("is_exact", [False, True])
def test_targets_average_to_the_quadrature(is_exact):
    """Two topics of two words are two beta variables: Gauss-Jacobi quadrature has E_q[dL/dt], and
    Fisher times the exact target's average is the score form of the gradient,
    E_q[(t - mu) L]. Five standard errors of 300 draws; the target at E[t], the step of `svi`, is
    caught by one of the two.
    """
    problem = tiny_lda()
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    shared = {"beta": jnp.asarray([[2.5, 1.5], [1.2, 2.0]])}
    start = obj.start_local(model, hyper, batch)

    @jax.jit
    def rows(log_beta):
        t = {"beta": log_beta}
        part = obj.local_part(model, hyper, t, batch, start, RowOptions(500, 1e-10))
        return part.value + part.entropy, part.gradient["beta"]

    points, weights = _nodes(np.asarray(shared["beta"]), 14)
    heights, slopes = jax.vmap(rows)(jnp.log(points))
    mean = np.asarray(fam.dirichlet.mean(shared["beta"]))
    if is_exact:
        truth = np.einsum("n,n,nkv->kv", weights, heights, np.log(points) - mean)
    else:
        truth = np.einsum("n,nkv->kv", weights, slopes)

    def judged(change):
        if not is_exact:
            return np.asarray(change)
        return np.asarray(jax.jvp(fam.dirichlet.mean, (shared["beta"],), (change,))[1])

    @jax.jit
    def target(key):
        draw_key, key = jax.random.split(key)
        t = draw_statistics(model, draw_key, shared)
        found = ({"beta": rows(t["beta"])[1]},)
        center = ({"beta": rows(fam.dirichlet.mean(shared["beta"]))[1]},)
        moved = structured.exact(model, key, shared, t, found, center)
        return (moved if is_exact else found[0])["beta"]

    keys = jax.random.split(jax.random.key(3), 300)
    draws = np.stack([judged(x) for x in jax.lax.map(target, keys)])
    error = draws.std(0) / np.sqrt(len(draws)) + 1e-6
    assert np.all(np.abs(draws.mean(0) - truth) < 5 * error)
    plain = judged(rows(fam.dirichlet.mean(shared["beta"]))[1])
    if not is_exact:
        assert np.any(np.abs(plain - truth) > 5 * error)


def _nodes(concentrations, number):
    """(n, topics, 2) values of two beta variables and the weights of the quadrature under q."""
    one = []
    for a, b in concentrations:
        x, w = scipy.special.roots_jacobi(number, b - 1, a - 1)
        one.append((np.stack([(1 + x) / 2, (1 - x) / 2], -1), w / w.sum()))
    (first, p), (second, q) = one
    i, j = (x.ravel() for x in np.meshgrid(range(number), range(number), indexing="ij"))
    return np.stack([first[i], second[j]], 1), p[i] * q[j]


def test_concentrated_to_a_point_the_averaged_step_is_that_of_svi():
    """With q of the topics at a point, draws are their mean. The exact step is another one even
    there: a width depends on how L bends, however narrow q is.

    The natural parameters are 1e8; expected counts below 10, which the draws' width of 1e-4 moves
    by 1e-3.
    """
    problem = tiny_lda()
    shared = {"beta": 1e8 * jnp.asarray([[0.7, 0.3], [0.4, 0.6]])}
    state, batches = mb.State(shared, problem.hyper, 0), (problem.data.pack(),)
    options = settings(problem, num_draws=1, kappa=1.0, tau=4.0)
    theirs = (
        inference.core.registry.load_engine("svi")
        .Options()
        ._replace(kappa=1.0, tau=4.0, num_local=500, local_tolerance=1e-10)
    )
    for seed in range(3):
        key = jax.random.key(seed)
        new, info = structured.structured_step(problem, options, key, state, batches, False)
        other, known = natural_step(problem, theirs, state, batches, problem.data.num_rows, 0)
        moved, expected = (4 * (x.shared["beta"] - 0.75 * shared["beta"]) for x in (new, other))
        assert info.rate == known.rate == 0.25
        np.testing.assert_allclose(moved, expected, atol=1e-2)
        bounds = [sum(map(float, jax.tree.leaves(x.bound))) for x in (info, known)]
        np.testing.assert_allclose(*bounds, rtol=1e-3)


def test_the_bound_is_higher_than_mean_fields():
    """On LDA the structured bound ends above that of cavi, by more than its error, and rows of new
    draws differ with the topics drawn.
    """
    hyper, data = pp_models.load("lda").example(jax.random.key(0))
    named = {"hyper": hyper, "key": jax.random.key(1), "progress": False}
    best = inference.fit("lda", data, "cavi", **named).bound
    fit = inference.fit("lda", data, "structured", num_epochs=60, **named)
    assert fit.bound > best + 3 * fit.posterior.bound_error()
    assert fit.bound == fit.posterior.bound()
    draws = fit.posterior.sample(jax.random.key(0), 200)
    assert np.all(draws["theta"].std(0) > 0) and draws["theta"].shape[0] == 200
    alone = fit.posterior.sample(jax.random.key(0), 200, ["theta"])
    np.testing.assert_array_equal(alone["theta"], draws["theta"])


def test_without_data_rows_have_means_and_no_draws(tmp_path):
    """A stored fit holds the global sites, and rows' means and widths; a sentence asks for data."""
    hyper, data = pp_models.load("pmf").example(jax.random.key(0))
    fit = inference.fit("pmf", data, "structured", hyper, progress=False, num_epochs=3)
    again = inference.load(fit.save(tmp_path / "fit"))
    assert isinstance(again.posterior, Structured)
    np.testing.assert_array_equal(again.posterior.sd("u"), fit.posterior.sd("u"))
    again.posterior.sample(jax.random.key(0), 2, ["v"])
    with pytest.raises(InputError, match="data="):
        again.posterior.sample(jax.random.key(0), 2)


def test_what_it_cannot_do_is_said_first():
    """Updates of locations without closed form, Wishart matrices, linear response."""
    hyper, data = pp_models.load("ctm").example(jax.random.key(0))
    with pytest.raises(InputError, match=r'precision of ctm: use gradient="averaged"'):
        inference.fit("ctm", data, "structured", hyper, progress=False, gradient="exact")
    assert "use svi" in structured.suits(pp_models.load("correlated_nmf"))
    hyper, data = pp_models.load("pmf").example(jax.random.key(0))
    fit = inference.fit("pmf", data, "structured", hyper, progress=False, num_epochs=1)
    with pytest.raises(InputError, match="structured"):
        fit.corrected()
