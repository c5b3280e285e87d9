"""Correlated NMF against P 11.27 and 11.30-11.36."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import inference
import pp_models
from inference.core import objective as obj
from inference.engines import _minibatch as mb
from inference.run import fit as fitting
from pp_models import families as fam
from pp_models import model as base
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import Diverged, InputError
from pp_models.families import Pair


def make(**changes):
    hyper, data = pp_models.load("correlated_nmf").example(jax.random.key(0))
    return fitting.make_problem(
        "correlated_nmf", data, hyper._replace(**changes), devices=jax.local_devices()[:1]
    )


@pytest.fixture(scope="module")
def problem():
    return make()


def some_q(problem, seed=0):
    """A q that is no optimum: q(s), q(u), q(beta) and the location of ell."""
    rng = np.random.default_rng(seed)
    (D, V), K, m = problem.data.matrix.shape, 3, 2
    a, b, g, h = (jnp.asarray(rng.gamma(2, 1, shape) + 0.3) for shape in (D, D, (K, V), (K, 1)))
    factor = rng.normal(size=(D, m, m))
    precision = jnp.asarray(factor @ np.swapaxes(factor, 1, 2) + 2 * np.eye(m))
    u, ell = jnp.asarray(rng.normal(size=(D, m))), jnp.asarray(rng.normal(size=(K, m)))
    natural_u = Pair((precision @ u[..., None])[..., 0], -0.5 * precision)
    return (
        {
            "s": Pair(a, -b),
            "u": natural_u,
            "beta": Pair(g, -h),
            "ell": fam.point.natural(dist.Delta(ell, event_dim=1)),
        },
        u,
        ell,
    )


def gradient_at(problem, q):
    batch = problem.data.pack()
    return jax.jit(jax.grad(lambda t: base.joint(problem.model, problem.hyper, t, batch)))(
        obj.summarise(problem.model, q)
    )


def expected_counts(problem, q):
    """X_dv p_k^(dv) summed over words and kept by word, by P(11.24)."""
    X, stats = problem.data.matrix.toarray(), obj.summarise(problem.model, q)
    p = jax.nn.softmax(
        (stats["u"].first @ stats["ell"].first.T)[:, None, :] + stats["beta"].first.T[None], axis=-1
    )
    return jnp.einsum("dv,dvk->dk", X, p), jnp.einsum("dv,dvk->kv", X, p)


def test_points_get_the_printed_gradients_and_newton_steps():
    """With u a point: P(11.25), (11.27) for q(beta), P(11.30) and (11.31) as target.first + 2
    target.second x, and the curvature G^-1 of P(11.35)."""
    problem = make(point_u=True)
    q, u, ell = some_q(problem)
    gradient, (counts, by_word), hyper = (
        gradient_at(problem, q),
        expected_counts(problem, q),
        problem.hyper,
    )
    stats = obj.summarise(problem.model, q)
    omega = stats["s"].second[:, None] * jnp.exp(u @ ell.T)  # exp(alpha_d + ell_k' u_d)
    size = stats["beta"].second[:, 0]  # sum_v E[beta_kv]
    np.testing.assert_allclose(
        gradient["beta"].first, hyper.c0 / by_word.shape[1] + by_word, rtol=1e-10
    )
    np.testing.assert_allclose(-gradient["beta"].second[:, 0], hyper.c0 + omega.sum(0), rtol=1e-10)
    residual = counts - size * omega
    slope = {"ell": residual.T @ u - ell / hyper.sigma2, "u": residual @ ell - u}
    curvature = {
        "ell": jnp.eye(2) / hyper.sigma2 + jnp.einsum("dk,di,dj->kij", size * omega, u, u),
        "u": jnp.eye(2) + jnp.einsum("dk,ki,kj->dij", size * omega, ell, ell),
    }
    for site, x in (("ell", ell), ("u", u)):
        np.testing.assert_allclose(-2 * gradient[site].second, curvature[site], rtol=1e-9)
        np.testing.assert_allclose(
            gradient[site].first + 2 * (gradient[site].second @ x[..., None])[..., 0],
            slope[site],
            rtol=1e-8,
            atol=1e-9,
        )
        newton = x + jnp.linalg.solve(curvature[site], slope[site][..., None])[..., 0]
        np.testing.assert_allclose(fam.point.mean(gradient[site]).first, newton, rtol=1e-8)


def test_normal_u_gets_the_exact_expectation(problem):
    """E exp(ell'u) = exp(ell'm + ell'S ell / 2): by draws (five standard errors), in the precision
    of q(u), in the Hessian of ell by autodiff."""
    q, mean, ell = some_q(problem)
    stats, gradient = obj.summarise(problem.model, q), gradient_at(problem, q)
    spread = stats["u"].second - mean[:, :, None] * mean[:, None, :]
    factor = jnp.exp(mean @ ell.T + 0.5 * jnp.einsum("dij,ki,kj->dk", spread, ell, ell))
    draws = jax.jit(jax.vmap(lambda key: fam.normal.sample(key, q["u"]).first))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    sampled = np.exp(np.asarray(draws) @ np.asarray(ell).T)
    assert np.all(np.abs(sampled.mean(0) - factor) < 5 * sampled.std(0) / np.sqrt(20_000))
    weights = stats["s"].second[:, None] * stats["beta"].second[:, 0] * factor
    np.testing.assert_allclose(
        -2 * gradient["u"].second,
        jnp.eye(2) + jnp.einsum("dk,ki,kj->dij", weights, ell, ell),
        rtol=1e-9,
    )

    @jax.jit
    @jax.grad
    def slope_of_bound(ell):
        return base.joint(
            problem.model,
            problem.hyper,
            {**stats, "ell": fam.point.stats(ell)},
            problem.data.pack(),
        )

    def surrogate(ell):  # with the allocations held fixed, which is what a step is taken on
        exponent = mean @ ell.T + 0.5 * jnp.einsum("dij,ki,kj->dk", spread, ell, ell)
        rates = jnp.sum(stats["s"].second[:, None] * stats["beta"].second[:, 0] * jnp.exp(exponent))
        return (
            jnp.sum(expected_counts(problem, q)[0] * (mean @ ell.T))
            - rates
            - 0.5 * jnp.sum(ell**2) / problem.hyper.sigma2
        )

    slope = gradient["ell"].first + 2 * (gradient["ell"].second @ ell[..., None])[..., 0]
    np.testing.assert_allclose(slope, slope_of_bound(ell), rtol=1e-8, atol=1e-8)
    hessian = jnp.einsum("kikj->kij", jax.jit(jax.hessian(surrogate))(ell))
    np.testing.assert_allclose(2 * gradient["ell"].second, hessian, rtol=1e-8)


def test_scale_is_p_11_32():
    """As a0 and b0 vanish the mean of q(s_d) is exp(alpha_d) of P(11.32), and its target is one
    step from anywhere: no iteration."""
    problem = make(point_u=True, a0=1e-9, b0=1e-9)
    q, u, ell = some_q(problem)
    target, stats = gradient_at(problem, q)["s"], obj.summarise(problem.model, q)
    alpha = np.log(problem.data.totals) - np.log(np.exp(u @ ell.T) @ stats["beta"].second[:, 0])
    np.testing.assert_allclose(np.log(target.first / -target.second), alpha, atol=1e-7)


def test_without_locations_it_is_bayesian_nmf_with_a_scale_per_document(problem):
    """With ell = 0 the rows' likelihood is that of `bayesian_nmf` with theta_dk = s_d for every
    topic, and s_d has its conjugate gamma posterior."""
    q, _, ell = some_q(problem)
    stats, batch = (
        obj.summarise(
            problem.model, {**q, "ell": fam.point.natural(dist.Delta(0 * ell, event_dim=1))}
        ),
        problem.data.pack(),
    )
    plain = pp_models.load("bayesian_nmf")
    spread = jax.tree.map(lambda x: jnp.repeat(x[:, None], 3, axis=1), stats["s"])
    hyper = fitting.make_problem("bayesian_nmf", problem.data, {"num_topics": 3}).hyper
    theirs = plain.log_local(hyper, {"theta": spread, "beta": stats["beta"]}, batch)
    prior = Pair(jnp.full((1, 1), hyper.a0), jnp.full((1, 1), -hyper.b0))
    theirs -= batch.sum(fam.log_prior(fam.gamma, prior, spread))
    own = fam.log_prior(
        fam.gamma, Pair(jnp.full(1, problem.hyper.a0), jnp.full(1, -problem.hyper.b0)), stats["s"]
    )
    own += -0.5 * (jnp.trace(stats["u"].second, axis1=1, axis2=2) + 2 * jnp.log(2 * jnp.pi))
    ours = problem.model.log_local(problem.hyper, stats, batch) - batch.sum(own)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    target = jax.grad(lambda s: problem.model.log_local(problem.hyper, {**stats, "s": s}, batch))(
        stats["s"]
    )
    np.testing.assert_allclose(target.first, problem.hyper.a0 + problem.data.totals, rtol=1e-10)
    np.testing.assert_allclose(
        -target.second, problem.hyper.b0 + stats["beta"].second.sum(), rtol=1e-10
    )


@pytest.mark.parametrize("point_u", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_reach_their_optimum(point_u):
    """After the solver every row's q(s) and q(u) is its own target, and no fewer iterations had a
    higher bound (rounding: 1e-10)."""
    problem = make(point_u=point_u)
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    stats = obj.summarise(model, {site: some_q(problem)[0][site] for site in model.shared})
    start = obj.start_local(model, hyper, batch)

    program = jax.jit(lambda options: obj.local_part(model, hyper, stats, batch, start, options))

    def solve(num_local):
        part = program(RowOptions(num_local, 0.0))
        return part.natural, float(part.value + part.entropy)

    heights = np.array([solve(length)[1] for length in (1, 2, 3, 5, 9, 20, 400)])
    assert np.all(np.diff(heights) > -1e-10 * np.abs(heights[1:])) and heights[-1] > heights[0]
    natural = solve(400)[0]
    target = gradient_at(problem, {**some_q(problem)[0], **natural})
    for site in model.local:
        for a, b in zip(jax.tree.leaves(natural[site]), jax.tree.leaves(target[site]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_one_topic_documents_converge_at_once():
    """A document with 3,000 words of one topic: u and s in a score of steps, none longer than 1,
    where alternating them would take thousands."""
    X = np.zeros((2, 6), int)
    X[0, :3], X[1, 3:] = 1000, 1000
    problem = fitting.make_problem(
        "correlated_nmf", pp_models.data.counts(X), {"num_topics": 2, "rank": 2}
    )
    shared = {
        "beta": Pair(
            1000.0 * jnp.kron(jnp.eye(2), jnp.ones((1, 3))) + 1, -3000.0 * jnp.ones((2, 1))
        )
    }
    shared["ell"] = fam.point.natural(dist.Delta(jnp.array([[1.0, 0.3], [-0.4, 1.0]]), event_dim=1))
    part = mb.solve(
        problem._replace(devices=problem.devices[:1]),
        problem.hyper,
        shared,
        (problem.data.pack(),),
        RowOptions(50, 1e-6),
    ).shares[0]
    assert float(part.iterations) / 2 <= 20


@pytest.mark.slow
@pytest.mark.parametrize("point_u", [False, True])
def test_huge_documents_of_one_topic_in_single_precision(point_u):
    """Nine million words in a row: what the Hessian leaves of the counts stays positive, rows
    finite, and the rates add up to the words (2 %).

    Bounds of such rows fall by more than rounding, which ends the run (docs/reliability.md): what
    was found until then is held to the same.
    """
    X = np.zeros((2, 6), int)
    X[0, :3], X[1, 3:] = 3_000_000, 1000
    with jax.enable_x64(False):
        given = {"num_topics": 2, "rank": 2, "point_u": point_u}
        problem = fitting.make_problem(
            "correlated_nmf", pp_models.data.counts(X), given, devices=jax.local_devices()[:1]
        )
        try:
            fit = inference.fit(
                "correlated_nmf",
                problem.data,
                "cavi",
                given,
                num_epochs=15,
                progress=False,
                devices=problem.devices,
            )
        except Diverged as stopped:
            fit = stopped.fit
        assert (
            len(fit.history["bound"]) > 3
            and np.all(np.isfinite(fit.history["bound"]))
            and np.all(np.isfinite(fit.posterior.mean("u")))
        )
        rates = np.asarray(
            problem.model.predict(
                problem.hyper, {site: fit.posterior.mean(site) for site in problem.model.families}
            )
        )
        np.testing.assert_allclose(rates.sum(1), X.sum(1), rtol=0.02)


@pytest.mark.slow
def test_the_covariance_comes_to_rest_with_the_location(problem):
    """Begun at the optimum's locations with other covariances, rows do not stop before these are
    right too."""
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    stats = obj.summarise(model, {site: some_q(problem)[0][site] for site in model.shared})
    program = jax.jit(
        lambda start, options: obj.local_part(model, hyper, stats, batch, start, options)
    )
    best = obj.summarise(
        model, program(obj.start_local(model, hyper, batch), RowOptions(400, 0.0)).natural
    )
    wrong = best["u"]._replace(second=best["u"].second + jnp.eye(2))
    again = obj.summarise(model, program({**best, "u": wrong}, RowOptions(400, 1e-9)).natural)
    np.testing.assert_allclose(again["u"].second, best["u"].second, rtol=1e-6, atol=1e-7)


def test_steps_are_taken_back_until_the_objective_does_not_fall():
    """The first fraction that is not lower, or none; NaN is lower than anything."""
    for accepted in (obj.FRACTIONS[2:3], (), (obj.FRACTIONS[-1],)):
        height = {
            0.0: 1.0,
            **{
                f: 2.0 if f in accepted else (0.5 if f > 0.2 else float("nan"))
                for f in obj.FRACTIONS
            },
        }
        found = obj.advance(
            jnp.zeros(()),
            jnp.asarray,
            lambda x, height=height: [jnp.asarray(height[float(np.round(x, 6))])],
        )
        np.testing.assert_allclose(found, accepted[0] if accepted else 0.0)


@pytest.mark.slow
def test_far_starts_come_back(problem):
    """From locations that are badly off cavi still never lowers its bound, and ends where it ends
    from its own start (1 %: local optima)."""
    start = problem.model.init(jax.random.key(0), problem.hyper, problem.data)
    far = fam.point.natural(dist.Delta(8 * fam.point.mean(start["ell"]).first, event_dim=1))
    options = {"num_epochs": 300, "tolerance": 1e-9, "progress": False}
    fits = [
        inference.fit("correlated_nmf", problem.data, "cavi", problem.hyper, init=init, **options)
        for init in ({}, {"ell": far})
    ]
    for fit in fits:
        bounds = fit.history["bound"]
        assert np.all(np.diff(bounds) > -1e-9 * np.abs(bounds[1:]))
    assert fits[1].bound > fits[0].bound - 0.01 * abs(fits[0].bound)


@pytest.mark.slow
def test_points_have_no_density(problem):
    """q's log density counts a point as NumPyro's Delta does: nothing at the point, minus infinity
    elsewhere."""
    posterior = inference.fit(
        "correlated_nmf", problem.data, "cavi", problem.hyper, num_epochs=3, progress=False
    ).posterior
    draws = posterior.sample(jax.random.key(0), 5)
    assert np.all(np.isfinite(posterior.log_density(draws)))
    np.testing.assert_array_equal(posterior.log_density({"ell": draws["ell"]}), 0)
    assert np.all(posterior.log_density({**draws, "ell": draws["ell"] + 1e-3}) == -np.inf)


@pytest.mark.slow
def test_point_u_is_a_variant(problem, tmp_path):
    """point_u changes the family of u, in fits and in fits read back, and lets ell grow (P's
    estimate, against q(u) normal)."""
    fits = {
        p: inference.fit(
            "correlated_nmf",
            problem.data,
            "cavi",
            problem.hyper._replace(point_u=p),
            num_epochs=60,
            progress=False,
        )
        for p in (False, True)
    }
    sizes = {p: np.linalg.norm(fit.posterior.mean("ell"), axis=1).mean() for p, fit in fits.items()}
    assert sizes[True] > sizes[False]
    again = inference.load(fits[True].save(tmp_path / "fit"), problem.data)
    for fit in (fits[True], again):
        assert fit.model.families["u"] is fam.point and np.all(fit.posterior.sd("u") == 0)
    assert np.all(fits[False].posterior.sd("u") > 0)


def test_defaults_are_the_papers(problem):
    """c0 = 0.05 V, m = 50 or K if that is less, sigma2 = 1/m (P 11.6)."""
    hyper = fitting.make_problem("correlated_nmf", problem.data, {"num_topics": 5}).hyper
    assert (
        hyper.rank == 5
        and fitting.make_problem("correlated_nmf", problem.data, {"num_topics": 80}).hyper.rank
        == 50
    )
    np.testing.assert_allclose([hyper.sigma2, hyper.c0], [1 / 5, 0.05 * problem.data.num_columns])


def test_bad_values_are_refused(problem):
    """One sentence each; redundant dimensions only warn (P 11.3.2)."""
    for bad in (
        {"rank": -1},
        {"sigma2": 0.0},
        {"c0": (1.0, 2.0)},
        {"point_u": 1},
        {"a0": float("nan")},
    ):
        with pytest.raises(InputError, match=next(iter(bad))):
            fitting.make_problem("correlated_nmf", problem.data, bad)
    with pytest.warns(UserWarning, match="2 dimensions are redundant"):
        fitting.make_problem("correlated_nmf", problem.data, {"num_topics": 3, "rank": 5})
