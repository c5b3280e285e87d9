"""The default settings of the engines on batches climb as high as coordinate ascent."""

import jax
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import inference
import pp_models
from inference.engines import _minibatch as mb
from pp_models import datasets

ENGINES = ["svi", "trust_region"]


def fit(data, engine, hyper, model="lda", **options):
    return inference.fit(model, data, engine, hyper, jax.random.key(0), progress=False, **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_defaults_end_near_cavi(engine):
    """On data drawn from the prior of LDA, as in `make compare`, all engines find one mode. The gap
    from the start to cavi is about 1,500 nats, and the defaults may leave 0.5 % of it. The
    schedule (10 + t)^-0.7 without averaging left 3.0 %, that of `trust_region` 0.6 %.
    """
    hyper, data, _ = datasets.synthetic(pp_models.load("lda"), jax.random.key(0))
    best = fit(data, "cavi", hyper, num_epochs=300, tolerance=1e-8)
    gap = best.bound - best.history["bound"][0]
    assert fit(data, engine, hyper).bound > best.bound - 0.005 * gap


@pytest.mark.parametrize("engine", ENGINES)
def test_long_documents_keep_their_topics(engine):
    """Five planted topics, 3,000 tokens a document. A found topic differs from its own by some 0.05
    in total variation, from another one by more than 0.8: the limit is between. `svi` with
    its former defaults lost two.
    """
    rng = np.random.default_rng(0)
    planted = rng.dirichlet(np.full(2000, 0.05), 5)
    shares = rng.dirichlet(np.full(5, 0.3), 140)
    drawn = np.array([rng.multinomial(3000, p) for p in shares @ planted])[:120]
    found = fit(pp_models.data.counts(drawn), engine, {"num_topics": 5}).posterior.mean("beta")
    far = 0.5 * np.abs(planted[:, None] - np.asarray(found, float)[None]).sum(-1)
    assert far[linear_sum_assignment(far)].max() < 0.3


def steps(data, engine, **options):
    """The fit, and the natural parameters of `beta` after each step, without averaging."""
    seen = []
    problem = inference.run.fit.make_problem("lda", data, {"num_topics": 3})
    chosen = inference.run.fit.load_engine(engine)
    settled = chosen.settle(inference.run.fit.make_options(chosen, options), data)
    algorithm = chosen.build(problem, settled)
    keys = jax.random.split(jax.random.key(0), 3)
    state = algorithm.init(keys[0], {})
    number, _ = inference.run.fit.run_length(chosen, settled, problem)
    for batches in inference.run.fit.feed(chosen, settled, problem, keys[1], number):
        state, _ = algorithm.step(keys[2], state, batches)
        seen.append(np.asarray(jax.tree.leaves(state.shared["beta"])[0], float))
    return algorithm.posterior(state), np.array(seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_answer_is_an_average_with_growing_weights(engine):
    """The recursion's weights are $s (s + 1) \\cdots (s + 6)$ in closed form: step $s$ of $t$ has a
    share of 8 / (7 + s), and all later ones leave it (u - 1) / (7 + u) of itself. Single precision.
    """
    data = pp_models.data.counts(np.random.default_rng(0).poisson(1.0, (12, 8)))
    posterior, seen = steps(data, engine, batch_size=4, num_epochs=5)
    number = np.arange(1.0, len(seen) + 1)
    weights = np.prod([number + i for i in range(int(mb.POWER))], axis=0)
    expected = np.tensordot(weights / weights.sum(), seen, 1)
    found = np.asarray(jax.tree.leaves(posterior.natural("beta"))[0])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_all_rows_is_not_averaged(engine):
    """Without noise, the last step is the answer."""
    data = pp_models.data.counts(np.random.default_rng(0).poisson(1.0, (12, 8)))
    posterior, seen = steps(data, engine, batch_size=12, num_epochs=5)
    found = np.asarray(jax.tree.leaves(posterior.natural("beta"))[0])
    np.testing.assert_array_equal(found, seen[-1])


def test_learned_hyper_parameters_are_averaged_too():
    """The answer's alpha is not that of the last step, which a batch of few rows moves."""
    data = pp_models.data.counts(np.random.default_rng(0).poisson(1.0, (12, 8)))
    problem = inference.run.fit.make_problem("lda", data, {"num_topics": 3, "alpha": "learn"})
    state = mb.State({}, problem.hyper, 1)
    state = mb.averaged(state, state, True)
    later = problem.hyper._replace(alpha=3 * np.asarray(problem.hyper.alpha))
    now = mb.averaged(mb.State({}, later, 2), state, True)
    share = (mb.POWER + 1) / (mb.POWER + 2)
    expected = np.asarray(problem.hyper.alpha) * (1 + 2 * share)
    np.testing.assert_allclose(now.average[1].alpha, expected, rtol=1e-5)
