"""The Bernoulli mixture against its textbook updates, closed forms and symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import betaln, digamma, logsumexp

import inference
import pp_models
from inference.core import align
from inference.core import objective as obj
from inference.run import fit as fitting
from pp_models import families as fam
from pp_models import model as base
from pp_models.errors import InputError
from pp_models.families import Pair


@pytest.fixture(scope="module")
def problem():
    hyper, data = pp_models.load("bernoulli_mixture").example(jax.random.key(0))
    return fitting.make_problem("bernoulli_mixture", data, hyper, devices=jax.local_devices()[:1])


@pytest.fixture(scope="module")
def q(problem):
    rng = np.random.default_rng(0)
    size = (2, problem.data.num_columns)
    return {
        "pi": jnp.asarray(rng.gamma(2, 1, 2)),
        "beta": Pair(jnp.asarray(rng.gamma(2, 1, size)), jnp.asarray(rng.gamma(2, 1, size))),
    }


def test_updates_are_the_textbooks(problem, q):
    """dF/dmu gives gamma_k = prior + sum_n phi_nk, a_ki = a + sum_n phi_nk x_ni, b_ki = b + sum_n
    phi_nk (1 - x_ni), phi by digammas."""
    x, (a, b) = problem.data.values, q["beta"]
    log_one, log_zero = digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)
    scores = (
        digamma(q["pi"])
        - digamma(q["pi"].sum())
        + jnp.einsum("ni,ki->nk", x, log_one)
        + jnp.einsum("ni,ki->nk", 1 - x, log_zero)
    )
    phi = jax.nn.softmax(scores, axis=1)
    batch = problem.data.pack()
    stats = obj.summarise(problem.model, q)
    gradient = jax.grad(lambda t: base.joint(problem.model, problem.hyper, t, batch))(stats)
    np.testing.assert_allclose(gradient["pi"], 1.5 + phi.sum(0), rtol=1e-10)
    np.testing.assert_allclose(gradient["beta"].first, 1.2 + phi.T @ x, rtol=1e-10)
    np.testing.assert_allclose(gradient["beta"].second, 1.3 + phi.T @ (1 - x), rtol=1e-10)
    np.testing.assert_allclose(
        problem.model.log_local(problem.hyper, stats, batch),
        logsumexp(scores, axis=1).sum(),
        rtol=1e-12,
    )


def test_sampled_allocations_are_counted_once(problem, q):
    """With a key every row goes to one component: the natural parameters hold whole numbers of rows
    above the prior's."""
    model, batch = problem.model, problem.data.pack()
    gradient = jax.grad(lambda t: model.log_local(problem.hyper, t, batch, jax.random.key(3)))(
        obj.summarise(model, q)
    )
    rows = gradient["pi"]
    np.testing.assert_array_equal(rows, np.round(rows))
    assert rows.sum() == problem.data.num_rows and rows.min() > 0
    total = gradient["beta"].first + gradient["beta"].second
    np.testing.assert_allclose(total, jnp.broadcast_to(rows[:, None], total.shape), rtol=1e-12)


def test_start_and_defaults_are_theis_and_hoffmans(problem):
    """T 4.1: uniform priors; a, b from Gamma(100, scale 0.01), whose mean is 1 and variance 0.01,
    and gamma_k = 1."""
    hyper = fitting.make_problem("bernoulli_mixture", problem.data).hyper
    assert (hyper.concentration, hyper.a, hyper.b) == (1, 1, 1)
    start = problem.model.init(jax.random.key(0), hyper._replace(num_components=500), problem.data)
    np.testing.assert_array_equal(start["pi"], np.ones(500))
    draws = np.concatenate([np.ravel(leaf) for leaf in start["beta"]])
    assert abs(draws.mean() - 1) < 5 * 0.1 / np.sqrt(draws.size)
    np.testing.assert_allclose(draws.var(), 0.01, rtol=5 * np.sqrt(2 / draws.size))


def test_one_component_is_exact():
    """With K = 1 nothing is eliminated: CAVI finds the exact posterior and its bound is the log
    evidence of independent beta-Bernoulli columns."""
    x = (np.random.default_rng(0).random((9, 4)) < [0.1, 0.5, 0.9, 0.7]).astype(float)
    fit = inference.fit(
        "bernoulli_mixture",
        pp_models.data.dense(x),
        "cavi",
        {"num_components": 1, "a": 0.7, "b": 2.0},
        progress=False,
    )
    ones = x.sum(0)
    np.testing.assert_allclose(fit.posterior.natural("beta").first[0], 0.7 + ones, rtol=1e-6)
    np.testing.assert_allclose(fit.posterior.natural("beta").second[0], 2.0 + 9 - ones, rtol=1e-6)
    np.testing.assert_allclose(
        fit.bound, np.sum(betaln(0.7 + ones, 2.0 + 9 - ones) - betaln(0.7, 2.0)), rtol=1e-6
    )


def test_zeros_and_ones_are_symmetric(problem):
    """Exchanging zeros and ones, a and b, beta and 1 - beta changes F by nothing."""
    model, hyper = problem.model, problem.hyper
    drawn = base.simulate(model, hyper, problem.data.pack(), jax.random.key(1))
    values = {site: drawn[site] for site in model.families}
    flipped = pp_models.data.dense(1 - problem.data.values).pack()
    ours = base.log_joint(model, hyper, values, problem.data.pack())
    theirs = base.log_joint(
        model, hyper._replace(a=hyper.b, b=hyper.a), {**values, "beta": 1 - values["beta"]}, flipped
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_recovers_separated_components():
    """Three components that share no column: CAVI's best of four starts gives their weights and
    probabilities within three posterior sds."""
    rng = np.random.default_rng(1)
    truth = np.full((3, 12), 0.05)
    for k in range(3):
        truth[k, 4 * k : 4 * k + 4] = 0.95
    z = rng.choice(3, 600, p=[0.5, 0.3, 0.2])
    data = pp_models.data.dense(rng.random((600, 12)) < truth[z])
    fits = [
        inference.fit(
            "bernoulli_mixture",
            data,
            "cavi",
            {"num_components": 3},
            jax.random.key(s),
            progress=False,
        )
        for s in range(4)
    ]
    posterior = max(fits, key=lambda fit: fit.bound).posterior
    order = align.topic_order(truth, posterior.mean("beta"), align.squared)
    np.testing.assert_allclose(posterior.mean("pi")[order], np.bincount(z) / 600, atol=0.02)
    assert (
        np.mean(np.abs(posterior.mean("beta")[order] - truth) < 3 * posterior.sd("beta")[order])
        > 0.95
    )


@pytest.mark.slow
def test_images_in_single_precision():
    """At MNIST's size (784 columns, 40 components), some columns always 0 or 1, F and its gradient
    in float32 are within 1e-4 of float64."""
    rng = np.random.default_rng(2)
    x = (rng.random((200, 784)) < rng.beta(0.1, 0.4, 784)).astype(np.float32)
    a, b = 1 + rng.gamma(0.1, 30, (2, 40, 784))
    results = []
    for double in (True, False):
        with jax.enable_x64(double):
            problem = fitting.make_problem(
                "bernoulli_mixture", pp_models.data.dense(x), {"num_components": 40}
            )
            stats = obj.summarise(
                problem.model,
                {
                    "pi": jnp.full(40, 6.0),
                    "beta": Pair(jnp.asarray(a, float), jnp.asarray(b, float)),
                },
            )
            function = jax.jit(
                jax.value_and_grad(
                    lambda t, p=problem: base.joint(p.model, p.hyper, t, p.data.pack())
                )
            )
            results.append(jax.tree.map(np.asarray, function(stats)))
    for exact, single in zip(*map(jax.tree.leaves, results), strict=True):
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("values", "hyper", "words"),
    [
        ([[0.0, 1.0], [0.5, 1.0]], {}, "0 or 1, but one is 0.5"),
        ([[0, 1], [2, 1]], {}, "0 or 1, but one is 2"),
        ([[0, 1], [1, 1]], {"a": 0.0}, "a must be positive"),
        ([[0, 1], [1, 1]], {"b": [1.0, 2.0]}, "b must be one number"),
        (
            [[0, 1], [1, 1]],
            {"concentration": float("inf")},
            "concentration must be positive and finite",
        ),
        ([[0, 1], [1, 1]], {"num_components": 0}, "num_components must be a whole number"),
    ],
)
def test_bad_input(values, hyper, words):
    with pytest.raises(InputError, match=words):
        fitting.make_problem("bernoulli_mixture", pp_models.data.dense(values), hyper)


def test_counts_are_refused():
    with pytest.raises(InputError, match="explains dense data"):
        fitting.make_problem("bernoulli_mixture", pp_models.data.counts([[0, 1], [1, 1]]))


def test_components_of_equal_shape_are_told_apart_by_their_level():
    """Probabilities of 0.9 and 0.1 in all columns have the same normalised shape: alignment must
    look at their size."""
    model = pp_models.load("bernoulli_mixture")
    rng = np.random.default_rng(0)
    beta = np.stack([np.full((20, 6), 0.9), np.full((20, 6), 0.1)], 1) + 0.05 * rng.normal(
        size=(20, 2, 6)
    )
    draws = {"pi": np.broadcast_to([0.7, 0.3], (20, 2)), "beta": beta}
    order = np.argsort(rng.random((20, 2)), 1)
    assert len(np.unique(order[:, 0])) == 2
    aligned = align.align_draws(
        model,
        align.permute(model, draws, order),
        {"pi": np.array([0.7, 0.3]), "beta": np.array([[0.9] * 6, [0.1] * 6])},
    )
    for site, value in draws.items():
        np.testing.assert_array_equal(aligned[site], value)


def test_value_of_the_mode(problem, q):
    """summarise(..., "mode") of q(beta) is (a - 1) / (a + b - 2), the textbook's mode."""
    above = jax.tree.map(lambda x: x + 1, q["beta"])
    mode = fam.beta.value(fam.summarise(fam.beta, above, "mode"))
    np.testing.assert_allclose(
        mode, q["beta"].first / (q["beta"].first + q["beta"].second), rtol=1e-10
    )


def test_a_point_from_batches_has_all_its_values():
    """There are no sites of rows to be solved for when they are asked for."""
    hyper, data = pp_models.load("bernoulli_mixture").example(jax.random.key(0))
    posterior = inference.fit(
        "bernoulli_mixture",
        data,
        "stochastic_map",
        hyper,
        num_epochs=1,
        batch_size=4,
        progress=False,
    ).posterior
    assert posterior.values.keys() == set(posterior.sites) == set(posterior.at_hand)
