"""Gibbs, and with rows' weights integrated out, is right: Geweke's joint-distribution test on every
model, and agreement with NUTS.

NUTS shares no code with F.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.scipy.special import gammaln
from numpyro.infer import MCMC, NUTS, log_likelihood

import inference
from inference.core.registry import load_engine
from inference.engines import _gibbs_sweep as gibbs
from inference.engines import collapsed_gibbs, nuts
from pp_models import model as base
from pp_models.data import Data
from pp_models.elimination import tokens as tk
from pp_models.errors import InputError

CHAINS, ROUNDS = 1500, 2


@pytest.fixture(autouse=True)
def has_conditionals(problem):
    """Where a site has no complete conditional in closed form, gibbs refuses in a sentence that
    names an engine for it: there is nothing to test.
    """
    if reason := gibbs.suits(problem.model):
        with pytest.raises(InputError, match=r"none in closed form .* use nuts"):
            inference.fit(problem.model.name, problem.data, "gibbs", problem.hyper)
        pytest.skip(reason)


def small(problem):
    """A few rows of the example; of counts and ratings, with every cell an entry, so that new ones
    fit into the same shapes.
    """
    rows = problem.data.select(np.arange(4))
    if rows.kind == "dense":
        return rows.pack()
    cells = scipy.sparse.csr_array(np.ones((4, rows.num_columns), np.float32))
    votes = (
        None
        if rows.votes is None
        else scipy.sparse.csr_array(np.ones((4, rows.num_members), np.float32))
    )
    template = Data(rows.kind, matrix=cells, votes=votes).pack()
    if rows.kind != "counts":
        return template
    return template.replace(totals=jnp.asarray(np.minimum(rows.totals, 12.0)), max_total=12)


def observations(model, drawn):
    """What was drawn that is data; of text and votes, both."""
    return (
        drawn[model.observed]
        if model.kind != "text_and_votes"
        else {site: drawn[site] for site in ("counts", "votes")}
    )


def holding(template, drawn):
    """The batch holding these observations."""
    if isinstance(drawn, dict):
        return holding(template, drawn["counts"]).replace(
            votes=_filled(template.votes, drawn["votes"])
        )
    if template.dense is not None:
        return template.replace(
            dense=drawn.astype(template.dense.dtype),
            totals=drawn.sum(1).astype(template.totals.dtype),
        )
    return template.replace(
        entries=_filled(template.entries, drawn),
        by_column=None if template.by_column is None else _filled(template.by_column, drawn.T),
        totals=drawn.sum(1).astype(template.totals.dtype),
        log_factorials=template.log_factorials
        if template.by_column is not None
        else gammaln(drawn + 1.0).sum(1),
    )


def _filled(entries, cells):
    values = jnp.concatenate([cells.ravel(), jnp.zeros(entries.values.shape[0] - cells.size)])
    return dataclasses.replace(entries, values=values.astype(entries.values.dtype))


def row_likelihoods(model, hyper, batch, values):
    """NumPyro's log likelihood of every row, the sites being one draw of them."""
    terms = log_likelihood(model.generate, jax.tree.map(lambda x: x[None], values), hyper, batch)[
        model.observed
    ]
    return terms.reshape(batch.num_rows, -1).sum(1)


def functionals(model, hyper, values, batch, drawn):
    """First and second moments of every site and of the rates, and how data and parameters go
    together.
    """
    rates = model.predict(hyper, values)
    parts = [values[site].ravel() for site in model.families] + [rates.ravel()]
    x = jnp.concatenate(parts)
    last = (
        jnp.sum(jnp.log(rates))
        if model.kind == "counts"
        else jnp.sum(row_likelihoods(model, hyper, holding(batch, drawn), values))
    )
    seen = drawn if model.kind != "text_and_votes" else drawn[model.observed]
    return jnp.concatenate([x, x**2, (rates * seen).ravel(), last.reshape(1)])


def scores(problem, sweep):
    """z scores between the marginal-conditional and the successive-conditional simulators (Geweke
    2004).

    Both are run as independent chains: parameters and data from the prior, then, on one side,
    rounds of a Gibbs sweep given the data and new data given the parameters. If the sweep leaves
    the posterior invariant, both sides have the same distribution.
    """
    model, hyper, template = problem.model, problem.hyper, small(problem)

    def draw(key):
        drawn = base.simulate(model, hyper, template, key)
        return {site: drawn[site] for site in model.families}, observations(model, drawn)

    def successive(key):
        values, drawn = draw(jax.random.fold_in(key, 99))
        for i in range(ROUNDS):
            sweep_key, data_key = jax.random.split(jax.random.fold_in(key, i))
            stats = {site: family.stats(values[site]) for site, family in model.families.items()}
            stats = sweep(model, hyper, sweep_key, stats, holding(template, drawn))
            values = {site: family.value(stats[site]) for site, family in model.families.items()}
            drawn = observations(model, base.simulate(model, hyper, template, data_key, values))
        return functionals(model, hyper, values, template, drawn)

    keys = jax.random.split(jax.random.key(11), 2 * CHAINS)

    def once(key):
        values, drawn = draw(key)
        return functionals(model, hyper, values, template, drawn)

    marginal = np.asarray(jax.jit(jax.vmap(once))(keys[:CHAINS]))
    chained = np.asarray(jax.jit(jax.vmap(successive))(keys[CHAINS:]))
    error = np.sqrt((marginal.var(0) + chained.var(0)) / CHAINS)
    return (marginal.mean(0) - chained.mean(0)) / np.maximum(error, 1e-12)


# Tokens of a simulated row; the examples' Poisson rows have about 30, and have not been seen with
# more than 120.
MOST_STEPS = 256


def collapsed_sweep(model, hyper, key, stats, batch):
    """A sweep of collapsed_gibbs that begins at allocations drawn given everything.

    A token that counts itself is too small an error for Geweke's functionals (|z| up to 2.7 on
    LDA): `test_collapsed_gibbs` finds it.
    """
    token_key, sweep_key = jax.random.split(key)
    tokens = tk.arrange(batch.entries, batch.num_columns, MOST_STEPS)
    theta = model.families["theta"].value(stats["theta"])
    mine = jnp.take(theta, tokens.rows[tokens.groups], 0, mode="clip")
    logits = jnp.log(mine) + jnp.take(
        model.tokens.odds(hyper, stats, batch).column_logits.T, tokens.columns, 0, mode="clip"
    )
    nobody = tk.unallocated(tokens, theta.shape[1])
    drawn = jax.random.categorical(token_key, logits).astype(nobody.dtype)
    chain = collapsed_gibbs.Chain(
        stats, jnp.where(tokens.columns < batch.num_columns, drawn, nobody)
    )
    return collapsed_gibbs.sweep(model, hyper, sweep_key, chain, batch, tokens).stats


SWEEPS = {"gibbs": gibbs.sweep, "collapsed_gibbs": collapsed_sweep}


@pytest.fixture(params=["gibbs", "collapsed_gibbs"])
def sampler(problem, request):
    """The samplers of blocks that the model has."""
    if reason := load_engine(request.param).suits(problem.model):
        pytest.skip(reason)
    return request.param


# 200-odd functionals, most of them correlated: |z| < 4.5 has a false-alarm chance of about 1e-3
# over all of them.
LIMIT = 4.5


def test_geweke(problem, sampler):
    """Prior and data simulated through the sampler's sweep keep their joint distribution."""
    assert np.abs(scores(problem, SWEEPS[sampler])).max() < LIMIT


def test_geweke_catches_a_broken_sampler(problem):
    """A sweep that counts every token, or every dense row, three times is found out."""

    def overconfident(model, hyper, key, stats, batch):
        if batch.dense is not None:
            return gibbs.sweep(model, hyper, key, stats, batch.replace(mask=3 * batch.mask))
        entries = dataclasses.replace(batch.entries, values=3 * batch.entries.values)
        return gibbs.sweep(model, hyper, key, stats, batch.replace(entries=entries))

    assert np.abs(scores(problem, overconfident)).max() > 2 * LIMIT


def test_nuts_is_numpyros(problem):
    """A chain, the second one here, is the one that NumPyro's own MCMC runs with its key: the same
    warm-up, draws and statistics.

    The programs are compiled differently, and a chain magnifies the last digit by a few times at
    each of its 25 transitions.
    """
    fit = inference.fit(
        problem.model.name,
        problem.data,
        "nuts",
        problem.hyper,
        jax.random.key(3),
        num_samples=10,
        num_warmup=15,
        progress=False,
    )
    init_key = jax.random.split(jax.random.key(3), 3)[0]
    stock = MCMC(
        NUTS(problem.model.generate),
        num_warmup=15,
        num_samples=10,
        num_chains=1,
        progress_bar=False,
    )
    stock.run(
        jax.random.fold_in(init_key, 1),
        problem.hyper,
        problem.data.pack(),
        extra_fields=("num_steps", "potential_energy", "energy"),
    )
    extra, stats = stock.get_extra_fields(), fit.posterior.sample_stats
    np.testing.assert_array_equal(stats["n_steps"][1], extra["num_steps"])
    np.testing.assert_allclose(stats["lp"][1], -extra["potential_energy"], rtol=1e-5)
    np.testing.assert_allclose(stats["energy"][1], extra["energy"], rtol=1e-5)
    for site, draws in stock.get_samples().items():
        np.testing.assert_allclose(fit.posterior.draws[site][1], draws, rtol=1e-5, atol=1e-7)


def test_chunks_and_other_chains_change_nothing(problem, monkeypatch):
    """A chain's draws depend on its key alone: more draws, other chunks of nuts or another number
    of chains leave them as they are.

    Other chunks are another program, so equal to rounding as above.
    """
    shared = {"hyper": problem.hyper, "key": jax.random.key(3), "progress": False}

    def draws(engine, **options):
        return inference.fit(
            problem.model.name, problem.data, engine, **shared, **options
        ).posterior.draws

    blocks = [engine for engine in SWEEPS if not load_engine(engine).suits(problem.model)]
    pairs = [
        tuple(
            draws(engine, num_samples=n, num_warmup=50, num_chains=c)
            for n, c in ((60, 1), (110, 2))
        )
        for engine in blocks
    ]
    first = draws("nuts", num_samples=10, num_warmup=15, num_chains=2)
    monkeypatch.setattr(nuts, "REPORTS", 3)
    again = draws("nuts", num_samples=14, num_warmup=15, num_chains=1)
    for site in problem.model.families:
        for few, many in pairs:
            np.testing.assert_array_equal(many[site][:1, :60], few[site])
        np.testing.assert_allclose(again[site][:, :10], first[site][:1], rtol=1e-5, atol=1e-7)


def test_samplers_compile_once(problem, compiled):
    """Another key, and other values of the hyper-parameters, compile nothing."""
    changed = problem.hyper._replace(eta=0.9) if hasattr(problem.hyper, "eta") else problem.hyper
    options = {
        engine: {"num_samples": 50, "num_warmup": 20}
        for engine in SWEEPS
        if not load_engine(engine).suits(problem.model)
    }
    options["nuts"] = {"num_samples": 10, "num_warmup": 15}
    for engine, given in options.items():
        for key, hyper in ((3, problem.hyper), (4, changed)):
            compiled.clear()
            inference.fit(
                problem.model.name,
                problem.data,
                engine,
                hyper,
                jax.random.key(key),
                progress=False,
                **given,
            )
        assert not compiled, engine


@pytest.mark.costly
def test_gibbs_agrees_with_nuts(problem):
    """Posterior means of the rate matrix, and where rows have no sites of their own of their log
    likelihoods, agree within 0.15 posterior sd.

    By every sampler of blocks. Neither depends on the labels of factors, which chains exchange.

    With some 1,000 effective draws on either side a difference has a standard error of about 0.045
    sd; 0.15 is more than three of them for the worst of a hundred entries.
    """
    model = problem.model
    shared = {"hyper": problem.hyper, "key": jax.random.key(5), "progress": False}
    blocks = [engine for engine in SWEEPS if not load_engine(engine).suits(model)]
    exact = [
        inference.fit(
            model.name,
            problem.data,
            engine,
            num_samples=6000,
            num_warmup=1000,
            num_chains=2,
            **shared,
        )
        for engine in blocks
    ]
    stock = inference.fit(
        model.name,
        problem.data,
        "nuts",
        num_samples=1500,
        num_warmup=700,
        num_chains=2,
        # With votes, 0.95 leaves 195 divergent transitions of 3,000.
        target_accept=0.99 if model.kind == "text_and_votes" else 0.95,
        **shared,
    )

    def rates(fit):
        draws = {
            site: jnp.asarray(x.reshape(-1, *x.shape[2:]))
            for site, x in fit.posterior.draws.items()
        }
        batch = problem.data.pack()

        def one(values):
            expected = model.predict(problem.hyper, values).ravel()
            return (
                expected
                if model.local
                else jnp.concatenate(
                    [expected, row_likelihoods(model, problem.hyper, batch, values)]
                )
            )

        return np.asarray(jax.jit(lambda d: jax.lax.map(one, d, batch_size=100))(draws))

    theirs = rates(stock)
    assert stock.posterior.sample_stats["diverging"].sum() < 30
    for ours in map(rates, exact):
        assert np.abs(ours.mean(0) - theirs.mean(0)).max() < 0.15 * theirs.std(0).max()
        assert (np.abs(ours.mean(0) - theirs.mean(0)) / theirs.std(0)).max() < 0.15
        np.testing.assert_allclose(np.median(ours.std(0) / theirs.std(0)), 1, atol=0.05)
