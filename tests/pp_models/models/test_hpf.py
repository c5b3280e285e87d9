"""Hierarchical Poisson factorisation against the paper's coordinate updates, and against Bayesian
NMF, of which it is a variant."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import digamma

import inference
import pp_models
from inference.core import objective as obj
from inference.engines import cavi
from inference.engines import map as map_
from inference.run import fit as fitting
from pp_models import families as fam
from pp_models import model as base
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.families import Pair


@pytest.fixture(scope="module")
def problem():
    hyper, data = pp_models.load("hpf").example(jax.random.key(0))
    return fitting.make_problem("hpf", data, hyper, devices=jax.local_devices()[:1])


def some_gammas(shape, seed):
    rng = np.random.default_rng(seed)
    return Pair(
        jnp.asarray(rng.gamma(2, 1, shape) + 0.1), -jnp.asarray(rng.gamma(2, 1, shape) + 0.1)
    )


def test_updates_are_the_papers(problem):
    """dF/dmu gives the shapes and rates of all four blocks as printed (Gopalan et al., section 3),
    to rounding."""
    X, h, K = problem.data.matrix.toarray(), problem.hyper, problem.hyper.num_topics
    D, V = X.shape
    q = {
        site: some_gammas(shape, i)
        for i, (site, shape) in enumerate(
            {"theta": (D, K), "xi": (D,), "beta": (K, V), "eta": (V,)}.items()
        )
    }
    gradient = jax.grad(lambda t: base.joint(problem.model, h, t, problem.data.pack()))(
        obj.summarise(problem.model, q)
    )
    mean = {site: n.first / -n.second for site, n in q.items()}
    log = {site: digamma(n.first) - jnp.log(-n.second) for site, n in q.items()}
    phi = jax.nn.softmax(log["theta"][:, None, :] + log["beta"].T[None], axis=-1)
    printed = {
        "theta": (
            h.a + jnp.einsum("dv,dvk->dk", X, phi),
            mean["xi"][:, None] + mean["beta"].sum(1),
        ),
        "xi": (jnp.full(D, h.a_prime + K * h.a), h.b_prime + mean["theta"].sum(1)),
        "beta": (
            h.c + jnp.einsum("dv,dvk->kv", X, phi),
            mean["eta"] + mean["theta"].sum(0)[:, None],
        ),
        "eta": (jnp.full(V, h.c_prime + K * h.c), h.d_prime + mean["beta"].sum(0)),
    }
    for site, (shape, rate) in printed.items():
        np.testing.assert_allclose(gradient[site].first, shape, rtol=1e-10)
        np.testing.assert_allclose(-gradient[site].second, rate, rtol=1e-10)


def test_sharp_activities_make_it_bayesian_nmf(problem):
    """With a', b' -> infinity at a fixed ratio xi is that ratio: the part of F that theta sees
    tends to Bayesian NMF's, and the gap falls as 1/a'.

    At its update, q(xi) = Gamma(a' + K a, b' + sum theta): E xi and E log xi are within O(1/a') of
    b0 = a'/b' and its logarithm. xi's own prior and entropy add what does not depend on theta, so
    differences between two thetas are compared.
    """
    nmf, batch, rng = pp_models.load("bayesian_nmf"), problem.data.pack(), np.random.default_rng(0)
    D, V, K, ratio = batch.num_rows, batch.num_columns, 3, 0.7
    thetas = [nmf.families["theta"].stats(jnp.asarray(rng.gamma(2, 1, (D, K)))) for _ in range(2)]
    beta = jnp.asarray(rng.gamma(2, 1, (K, V)))
    flat = nmf.Hyper(num_topics=K, a0=1.4, b0=ratio, c0=1.0)
    theirs = [
        nmf.log_local(flat, {"theta": t, "beta": nmf.families["beta"].stats(beta)}, batch)
        for t in thetas
    ]

    def ours(theta, sharpness):
        hyper = problem.hyper._replace(a=1.4, a_prime=sharpness, b_prime=sharpness / ratio)
        natural = Pair(jnp.full(D, sharpness + K * hyper.a), -(hyper.b_prime + theta.second.sum(1)))
        xi = problem.model.families["xi"].mean(natural)
        t = {"theta": theta, "xi": xi, "beta": problem.model.families["beta"].stats(beta)}
        entropy = batch.sum(fam.entropy(problem.model.families["xi"], natural))
        return problem.model.log_local(hyper, t, batch) + entropy

    gaps = [
        abs((ours(thetas[0], s) - ours(thetas[1], s)) - (theirs[0] - theirs[1])) for s in (1e3, 1e5)
    ]
    assert gaps[1] < 0.02 * gaps[0] and gaps[1] < 1e-4 * abs(theirs[0] - theirs[1]), gaps


@pytest.mark.slow
@pytest.mark.parametrize("engine", [cavi, map_])
def test_a_pass_for_each_block_changes_nothing(problem, engine):
    """eta does not meet the rows: declared to (coupled="rows"), each block takes a pass of its own,
    and the sweeps are the same to rounding."""
    other = dataclasses.replace(problem.model)
    other.__dict__["coupled"] = "rows"  # in place of what is derived
    declared = [problem, problem._replace(model=other)]
    fits = []
    for one in declared:
        algorithm = engine.build(one, engine.Options(num_local=5))
        state, batches = (
            algorithm.init(jax.random.key(1), {}),
            one.data.shards(np.arange(one.data.num_rows), one.data.num_rows, one.devices),
        )
        for _ in range(3):
            state, info = algorithm.step(jax.random.key(2), state, batches)
        fits.append(
            (jax.tree.leaves(state.shared), sum(float(x) for x in jax.tree.leaves(info.bound)))
        )
    np.testing.assert_allclose(fits[0][1], fits[1][1], rtol=1e-12)
    for a, b in zip(fits[0][0], fits[1][0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.slow
def test_activity_follows_the_length_of_rows():
    """Rows of the same words, ten times as many in half of them: 1 / E xi, less what the prior
    adds, is ten times as large.

    E xi = (a' + K a) / (b' + sum_k E theta), and theta adds up to a multiple of the length. 750
    tokens in the short rows: a standard error of 4 %.
    """
    rng = np.random.default_rng(1)
    words = rng.dirichlet(np.ones(20))
    X = rng.poisson(np.repeat([50.0, 500.0], 15)[:, None] * words)
    fit = inference.fit(
        "hpf", pp_models.data.counts(X), "cavi", {"num_topics": 2}, num_epochs=300, progress=False
    )
    hyper = fit.hyper
    activity = 1 / fit.posterior.mean("xi") - hyper.b_prime / (hyper.a_prime + 2 * hyper.a)
    np.testing.assert_allclose(activity[15:].mean() / activity[:15].mean(), 10, rtol=0.12)


@pytest.mark.slow
def test_popular_items_have_small_rates():
    """The same of columns: eta falls with an item's popularity."""
    rng = np.random.default_rng(2)
    popularity = np.geomspace(0.2, 20, 12)
    fit = inference.fit(
        "hpf",
        pp_models.data.counts(rng.poisson(popularity, (60, 12))),
        "cavi",
        {"num_topics": 2},
        num_epochs=300,
        progress=False,
    )
    assert np.corrcoef(np.log(fit.posterior.mean("eta")), np.log(popularity))[0, 1] < -0.95


def test_rows_come_to_rest_where_both_their_sites_agree(problem):
    """theta and xi alternate to a fixed point of both: each row's xi is the update given its theta,
    at the end."""
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    stats = obj.summarise(
        model, {s: model.init(jax.random.key(0), hyper, problem.data)[s] for s in model.shared}
    )
    part = obj.local_part(
        model, hyper, stats, batch, obj.start_local(model, hyper, batch), RowOptions(200, 1e-14)
    )
    theta, xi = part.natural["theta"], part.natural["xi"]
    np.testing.assert_allclose(
        -theta.second, (xi.first / -xi.second)[:, None] + stats["beta"].second.sum(1), rtol=1e-10
    )
    np.testing.assert_allclose(
        -xi.second, hyper.b_prime + (theta.first / -theta.second).sum(1), rtol=1e-10
    )


def test_defaults_are_the_papers(problem):
    """Shapes of 0.3 and hyper-priors of mean one."""
    hyper = fitting.make_problem("hpf", problem.data).hyper
    assert all(float(getattr(hyper, name)) == 0.3 for name in ("a", "a_prime", "c", "c_prime"))
    assert (
        float(hyper.a_prime) / float(hyper.b_prime)
        == float(hyper.c_prime) / float(hyper.d_prime)
        == 1
    )


@pytest.mark.parametrize(
    ("hyper", "words"),
    [
        ({"a": 0.0}, "a must be positive"),
        ({"c_prime": (1.0, 2.0)}, "one number"),
        ({"num_topics": 0}, "num_topics"),
    ],
)
def test_bad_hyper_parameters_are_refused_in_a_sentence(problem, hyper, words):
    with pytest.raises(InputError, match=words):
        fitting.make_problem("hpf", problem.data, hyper)
