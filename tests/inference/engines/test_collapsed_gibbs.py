"""Collapsed Gibbs is exact: checked on corpora whose allocations can be enumerated, and by laws.

Geweke's test, agreement with NUTS, and what all samplers promise are in `test_samplers`.
"""

import dataclasses
import itertools

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import gammaln

import inference
import pp_models
from inference.engines import collapsed_gibbs
from pp_models.data import Data
from pp_models.elimination import tokens as tk
from pp_models.elimination.passes import Solved
from pp_models.elimination.row_solver import Odds
from pp_models.errors import InputError

TINY = np.array([[2, 1, 0], [0, 1, 2], [0, 0, 0]])  # six tokens, and a row without any
NUM_CHAINS = 20_000


def tokens_of(X, more=0):
    """The tokens in visiting order; their rows and columns, (steps, TOGETHER), padded."""
    data = pp_models.data.counts(X)
    tokens = collapsed_gibbs._arrange(
        data.pack().entries, X.shape[1], tk.num_steps(data.totals) + more
    )
    return tokens, np.asarray(tokens.rows)[np.asarray(tokens.groups)], np.asarray(tokens.columns)


def some_odds(X, num_factors, seed=0):
    """Odds in which everything differs from row to row and factor to factor."""
    rng = np.random.default_rng(seed)
    concentration, log_scale = (
        rng.uniform(0.6, 1.5, (len(X), num_factors)),
        rng.normal(0, 0.7, (len(X), num_factors)),
    )
    return Odds(
        jnp.asarray(concentration),
        jnp.asarray(log_scale),
        jnp.asarray(rng.normal(0, 1.0, (num_factors, X.shape[1]))),
    )


def listed(X, num_factors):
    """Every allocation of the tokens, (allocations, tokens), and the tokens' rows and columns."""
    rows, columns = (np.repeat(np.indices(X.shape)[axis].ravel(), X.ravel()) for axis in (0, 1))
    return np.array(list(itertools.product(range(num_factors), repeat=len(rows)))), rows, columns


def tables(allocations, index, size, num_factors):
    """(allocations, size, K) number of tokens of each row or column in each factor."""
    hot = (allocations[:, :, None] == np.arange(num_factors)).astype(float)
    return np.stack([hot[:, index == i].sum(1) for i in range(size)], 1)


def law_given_columns(odds, X):
    """p(z) for every z: prod Gamma(a + N) scale^N, times the tokens' column weights."""
    concentration, log_scale, logits = (np.asarray(part) for part in odds)
    z, rows, columns = listed(X, len(logits))
    counts = tables(z, rows, len(X), len(logits))
    log_p = (gammaln(concentration + counts) + counts * log_scale).sum((1, 2)) + logits[
        z, columns
    ].sum(1)
    return np.exp(log_p - scipy.special.logsumexp(log_p))


def frequencies(odds, X, num_sweeps=6):
    """Frequency of each enumerated allocation among independent chains after some sweeps."""
    tokens, row_of, column_of = tokens_of(X)
    num_factors = len(odds.column_logits)

    def chain(key):
        keys = jax.random.split(key, num_sweeps)
        return jax.lax.scan(
            lambda z, k: (tk.reallocate(k, tokens, z, odds), None),
            tk.unallocated(tokens, num_factors),
            keys,
        )[0]

    found = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(3), NUM_CHAINS)))
    real = column_of < X.shape[1]
    order = np.lexsort((column_of[real], row_of[real]))  # as they are listed
    chosen = found[:, real][:, order].astype(int)
    return np.bincount(
        chosen @ num_factors ** np.arange(chosen.shape[1])[::-1],
        minlength=num_factors ** chosen.shape[1],
    )


def p_value(found, law):
    """Of Pearson's test, rare allocations taken together with the rarest that is not."""
    order = np.argsort(law)
    rare = np.sum(np.cumsum(law[order]) * NUM_CHAINS < 20)
    observed, expected = (
        np.append(x[order[rare + 1 :]], x[order[: rare + 1]].sum())
        for x in (found, NUM_CHAINS * law)
    )
    return scipy.stats.chisquare(observed, expected).pvalue


def test_allocations_have_their_exact_distribution():
    """All 64 allocations of six tokens to two factors turn up as often as they should.

    With concentrations near one, six sweeps forget their start to far below a standard error.
    p > 1e-3 with a fixed seed (100,000 chains of three seeds after 6, 12 and 40 sweeps: p from
    0.19 to 0.74).
    """
    odds = some_odds(TINY, 2)
    assert p_value(frequencies(odds, TINY), law_given_columns(odds, TINY)) > 1e-3


@pytest.mark.slow
def test_a_token_that_counts_itself_is_found_out(monkeypatch):
    """The same test refuses a sampler that leaves a token in its own row's counts, by far."""
    monkeypatch.setattr(tk, "without", lambda counts, own: counts)
    odds = some_odds(TINY, 2)
    assert p_value(frequencies(odds, TINY), law_given_columns(odds, TINY)) < 1e-20


@pytest.mark.slow
def test_whole_sampler_has_the_exact_posterior_mean():
    """Draws agree with expected word probabilities by enumeration of all 2^6 allocations.

    The tolerance is four standard errors of the effective draws. The row without words has the
    prior's.
    """
    alpha, eta, size = 0.7, 0.4, 2
    z, rows, columns = listed(TINY, size)
    by_row, by_column = tables(z, rows, len(TINY), size), tables(z, columns, TINY.shape[1], size)
    log_p = (
        gammaln(alpha + by_row).sum((1, 2))
        + gammaln(eta + by_column).sum((1, 2))
        - gammaln(3 * eta + by_column.sum(1)).sum(1)
    )
    law = np.exp(log_p - scipy.special.logsumexp(log_p))
    theta = (alpha + by_row) / (size * alpha + by_row.sum(2, keepdims=True))
    beta = (eta + by_column) / (3 * eta + by_column.sum(1, keepdims=True))
    exact = np.einsum("z,zdk,zvk->dv", law, theta, beta)
    hyper = {"num_topics": size, "alpha": alpha, "eta": eta}
    fit = inference.fit(
        "lda",
        pp_models.data.counts(TINY),
        "collapsed_gibbs",
        hyper,
        num_samples=5000,
        num_warmup=50,
        progress=False,
    )
    draws = np.einsum("csdk,cskv->csdv", *(fit.posterior.draws[site] for site in ("theta", "beta")))
    effective = np.array(
        [float(arviz.ess(draws[:, :, d, v])) for d, v in np.ndindex(exact.shape)]
    ).reshape(exact.shape)
    assert effective.min() > 1000
    assert np.all(np.abs(draws.mean((0, 1)) - exact) < 4 * draws.std((0, 1)) / np.sqrt(effective))


def corpus(num_rows=70, num_columns=23, seed=0):
    """Rows of very different lengths, some of them empty, in more groups than one."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(
        rng.gamma(0.3, 3.0, (num_rows, num_columns)) * rng.gamma(1.0, 1.0, (num_rows, 1))
    )
    X[3::37] = 0
    return X


def test_layout_holds_every_token_once():
    """Tokens put back into rows and columns are the data; further steps hold nothing."""
    for X, more in ((corpus(), 0), (corpus(), 9), (TINY, 0), (corpus(33), 0), (np.array([[5]]), 0)):
        _, rows, columns = tokens_of(X, more)
        again, real = np.zeros_like(X), columns < X.shape[1]
        np.add.at(again, (rows[real], columns[real]), 1)
        np.testing.assert_array_equal(again, X)
        # a group is no longer than the shortest row of the group before, except the first
        assert columns.size <= X.sum() + tk.TOGETHER * (X.sum(1).max() + more)


@pytest.mark.parametrize("num_factors", [1, 5, 16, 37])
def test_counts_add_up_to_the_data(num_factors):
    """Counts of factors sum to the rows and columns of the data after every visit."""
    X = corpus()
    tokens, _, _ = tokens_of(X)
    odds, allocations = some_odds(X, num_factors), tk.unallocated(tokens, num_factors)
    program = jax.jit(tk.reallocate)
    for sweep in range(3):
        allocations = program(jax.random.key(sweep), tokens, allocations, odds)
        known = tk.tally(tokens, allocations, len(X), num_factors, X.shape[1], jnp.float32)
        np.testing.assert_array_equal(known.row_statistics.sum(1), X.sum(1))
        np.testing.assert_array_equal(known.column_statistics.sum(0), X.sum(0))
        assert (
            np.all(np.asarray(known.row_statistics) >= 0) and known.row_statistics.sum() == X.sum()
        )
    if num_factors > 1:
        assert np.count_nonzero(known.row_statistics) > len(X)


def test_many_factors_take_wider_integers():
    """A token takes one byte up to 255 factors and two beyond."""
    tokens, _, columns = tokens_of(corpus())
    assert [tk.unallocated(tokens, k).dtype for k in (1, 255, 256, 65_535, 65_536)] == [
        np.uint8,
        np.uint8,
        np.uint16,
        np.uint16,
        np.int32,
    ]
    drawn = np.asarray(
        jax.jit(tk.reallocate)(
            jax.random.key(0), tokens, tk.unallocated(tokens, 300), some_odds(corpus(), 300)
        )
    )
    assert drawn[columns < 23].max() < 300 and np.any((drawn > 255) & (columns < 23))


@pytest.mark.parametrize("num_factors", [1, 3, 16, 17, 50])
def test_factors_are_picked_with_their_odds(num_factors):
    """Pearson's test on 40,000 draws, p > 1e-3; padding and zero weights are never picked."""
    rng = np.random.default_rng(num_factors)
    odds = rng.gamma(0.5, 1.0, num_factors) + 1e-3
    weights = np.pad(odds, (0, -num_factors % 16))
    found = np.asarray(
        tk.pick_lane(jnp.tile(weights, (40_000, 1)), jnp.asarray(rng.random(40_000)), num_factors)
    )
    assert (
        num_factors == 1
        or scipy.stats.chisquare(
            np.bincount(found, minlength=num_factors), 40_000 * odds / odds.sum()
        ).pvalue
        > 1e-3
    )
    with jax.enable_x64(False):
        extremes = jnp.asarray([0.0, 1e-30, 1 - 2**-24, 1.0], jnp.float32)
        for power in (-37, 0, 37):
            at_ends = np.asarray(
                tk.pick_lane(
                    jnp.tile(jnp.asarray(weights * 10.0**power, jnp.float32), (4, 1)),
                    extremes,
                    num_factors,
                )
            )
            assert np.all(at_ends < num_factors)


@pytest.mark.slow
def test_one_factor_is_the_conjugate_posterior():
    """With K = 1, topics are draws of Dirichlet(eta + counts): means and sds within five errors."""
    X, eta = corpus(), 0.5
    draws = inference.fit(
        "lda",
        pp_models.data.counts(X),
        "collapsed_gibbs",
        {"num_topics": 1, "eta": eta},
        num_samples=1500,
        num_warmup=0,
    )
    found = draws.posterior.draws["beta"].reshape(-1, X.shape[1])
    exact = scipy.stats.dirichlet(eta + X.sum(0))
    sd = np.sqrt(exact.var())
    assert np.all(np.abs(found.mean(0) - exact.mean()) < 5 * sd / np.sqrt(len(found)))
    np.testing.assert_allclose(found.std(0), sd, rtol=5 / np.sqrt(2 * len(found)) * 1.5)


def test_single_precision_stays_finite():
    """Tiny priors, rows of one and of 3,000 tokens, single precision: draws are proportions."""
    X = np.zeros((3, 4), int)
    X[0, 1], X[1] = 1, (1_000, 5, 0, 2_000)
    with jax.enable_x64(False):
        hyper = {"num_topics": 20, "alpha": 1e-6, "eta": 1e-4}
        fit = inference.fit(
            "lda",
            pp_models.data.counts(X),
            "collapsed_gibbs",
            hyper,
            num_samples=2,
            num_warmup=1,
            num_chains=1,
            progress=False,
        )
        for site in ("theta", "beta"):
            assert fit.posterior.draws[site].dtype == np.float32
            np.testing.assert_allclose(fit.posterior.draws[site].sum(-1), 1, rtol=1e-4)


def test_refusals():
    """What cannot be done is refused in a sentence that names the way out."""
    X = pp_models.data.counts(corpus())
    huge = Data("counts", matrix=type(X.matrix)(np.array([[2.0**24, 1.0]])))
    with pytest.raises(InputError, match=r"collapsed_gibbs counts tokens .* rescale"):
        inference.fit("lda", huge, "collapsed_gibbs", {"num_topics": 2})
    with pytest.raises(InputError, match=r"integrates theta out .* beta alone"):
        inference.fit(
            "lda",
            X,
            "collapsed_gibbs",
            {"num_topics": 2},
            init={"theta": np.full((70, 2), 0.5)},
            progress=False,
        )
    with pytest.raises(InputError, match=r"pmf declares no odds .* use gibbs"):
        inference.fit(
            "pmf",
            pp_models.data.ratings([0, 1], [0, 1], [1.0, 2.0], shape=(2, 2)),
            "collapsed_gibbs",
        )
    with pytest.raises(InputError, match=r"ctm declares no odds .* use nuts"):
        inference.fit("ctm", X, "collapsed_gibbs")


@pytest.mark.parametrize("name", ["lda", "bayesian_nmf", "hpf"])
def test_odds_are_those_of_weights_integrated_out(name):
    """The log odds are the change of log p(z | beta) by one more token, up to a constant.

    F of a row given its tokens is linear in t(theta), so the integral over the weights is the
    normaliser of the family at dF/dt; one more token of factor k adds one to the
    k-th entry of the gradient, and beta's logit to F.
    """
    model = pp_models.load(name)
    assert next(iter(model.families)) in model.local  # the weights
    hyper, data = model.example(jax.random.key(0))
    hyper = model.resolve(hyper, data)
    batch, natural = data.pack(), model.init(jax.random.key(1), hyper, data)
    stats = {
        site: family.sample(jax.random.key(2), natural[site])
        for site, family in model.families.items()
    }
    odds = model.tokens.odds(hyper, stats, batch)
    size = len(odds.column_logits)
    counts = jnp.asarray(np.random.default_rng(0).integers(0, 5, (data.num_rows, size)), float)
    site = next(iter(model.families))

    @jax.jit
    def log_mass(counts):
        known = batch.replace(
            entries=dataclasses.replace(batch.entries, solved=Solved(jnp.zeros(()), counts, None))
        )
        target = jax.grad(lambda t: model.log_local(hyper, {**stats, site: t}, known))(stats[site])
        return model.families[site].log_normalizer(target)

    ratios = jnp.stack(
        [log_mass(counts.at[:, k].add(1)) - log_mass(counts) for k in range(size)], 1
    )
    expected = jnp.log(odds.concentration + counts) + odds.log_scale
    difference = np.asarray(ratios - expected)
    np.testing.assert_allclose(difference - difference[:, :1], 0, atol=1e-9)
