"""Collapsed Gibbs for LDA: its speed beside `gibbs` and tomotopy, its mixing, and its posterior.

    python benchmarks/collapsed.py speed --data bow.npz    tokens per second and device of a sweep
    python benchmarks/collapsed.py mixing                  effective draws per second beside `gibbs`
    python benchmarks/collapsed.py curve --data bow.npz    held-out score by sweeps and seconds

`speed` takes turns at 50 and 100 topics. `mixing` uses a drawn corpus and reports the gap of the
means in posterior sd. `curve` runs beside tomotopy with the same priors. Each prints one JSON line.
Compiling is not counted. tomotopy's alpha is kept as given, so that all sample one posterior; all
are scored at the topics' conditional mean given one state of the allocations, (eta + counts) /
total, by document completion (nats per held-out word).
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from _common import (
    CORES,
    REQUIRED,
    bind,
    completion_of,
    report,
    rounded,
    run_commands,
    tomotopy_model,
    tomotopy_topics,
)

import inference
import pp_models
from inference.core.problem import make_problem
from inference.engines import _gibbs_sweep as gibbs
from inference.engines import collapsed_gibbs
from inference.evaluation.splits import hold_out
from inference.io import arviz
from pp_models.elimination import tokens as tk

ALPHA, ETA = 0.1, 0.05
DATA = (REQUIRED, "documents x words, in any format that pp_models reads")


def same_posterior(data, num_topics):
    """tomotopy with our priors, which it does not change."""
    model = tomotopy_model(data, num_topics, alpha=ALPHA, eta=ETA)
    model.optim_interval = 0
    return model


def one_device(data, num_topics):
    hyper = {"num_topics": num_topics, "alpha": ALPHA, "eta": ETA}
    return make_problem("lda", data, hyper, devices=jax.local_devices()[:1])


def speed_at(data, num_topics, turns=5, warm=20):
    """Million tokens per second of wall time and of processor time, on one device.

    Processor time is less disturbed by others on the machine. The best of some turns counts.
    """
    problem = one_device(data, num_topics)
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    tokens = tk.arrange(batch.entries, data.num_columns, tk.num_steps(data.totals))

    @jax.jit
    def collapsed(key, chain, batch, tokens):
        return collapsed_gibbs.sweep(model, hyper, key, chain, batch, tokens)

    @jax.jit
    def both(key, chain, batch, tokens):
        return gibbs.sweep(model, hyper, key, chain.stats, batch)

    @jax.jit
    def only(key, chain, batch, tokens):
        odds = model.tokens.odds(hyper, chain.stats, batch)
        return tk.reallocate(key, tokens, chain.allocations, odds)

    start = gibbs.begin(problem, jax.random.key(0), {}), tk.unallocated(tokens, num_topics)
    chain = collapsed_gibbs.Chain(*start)
    for i in range(warm):
        chain = collapsed(jax.random.key(i), chain, batch, tokens)
    peer = same_posterior(data, num_topics)
    peer.train(warm, workers=1)

    def ours(sweep):
        return lambda i: jax.block_until_ready(sweep(jax.random.key(i), chain, batch, tokens))

    runs = {"gibbs": ours(both), "collapsed_gibbs": ours(collapsed)}
    runs["collapsed_gibbs, tokens alone"] = ours(only)
    for n in sorted({1, CORES}):
        runs[f"tomotopy, {n} workers"] = lambda i, n=n: peer.train(1, workers=n)
    best = dict.fromkeys(runs, np.array([np.inf, np.inf]))
    for i in range(turns + 1):  # the first compiles
        for name, run in runs.items():
            begin = np.array([time.perf_counter(), time.process_time()])
            run(i)
            took = np.array([time.perf_counter(), time.process_time()]) - begin
            best[name] = np.minimum(best[name], took if i else np.inf)
    return {name: rounded(float(data.total) / x / 1e6, 2) for name, x in best.items()}


def drawn(num_rows=300, num_columns=300, num_topics=8, length=60, seed=0):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(num_columns, 0.1), num_topics)
    shares = rng.dirichlet(np.full(num_topics, 0.3), num_rows)
    return pp_models.data.counts(rng.multinomial(rng.poisson(length, num_rows), shares @ topics))


def functionals(fit, num_entries=60):
    """(chains, draws, functionals) that no relabelling changes.

    They are the log joint, expected data at some entries, and the rows' concentration.
    """
    rows, columns = fit.problem.data.matrix.nonzero()
    chosen = np.random.default_rng(0).choice(len(rows), num_entries, replace=False)
    theta, beta = (fit.posterior.draws[site] for site in ("theta", "beta"))
    weights, topics = theta[:, :, rows[chosen]], beta[:, :, :, columns[chosen]]
    rates = np.einsum("csnk,cskn->csn", weights, topics)
    squares = np.square(theta).sum(-1)
    lp = fit.posterior.sample_stats["lp"][..., None]
    parts = lp, rates, squares[:, :, :20], squares.mean(-1)[..., None]
    return np.concatenate(parts, -1).astype(float)


def mixing(chosen):
    """Effective draws per second of two chains each from where `cavi` ends, in one mode."""
    num_samples, num_warmup, data = 2000, 1000, drawn()
    hyper = {"num_topics": 8, "alpha": 0.3, "eta": 0.1}
    start = inference.fit("lda", data, "cavi", hyper, progress=False).posterior.mean("beta")
    stats, values, sizes, line = arviz.array_stats(), {}, {}, {}
    shared = {"hyper": hyper, "init": {"beta": start}, "progress": False, "num_chains": 2}
    for engine in ("gibbs", "collapsed_gibbs"):
        inference.fit("lda", data, engine, num_samples=50, num_warmup=50, **shared)  # compiles
        length = {"num_samples": num_samples, "num_warmup": num_warmup}
        fit = inference.fit("lda", data, engine, **length, **shared)
        values[engine] = functionals(fit)
        each = np.moveaxis(values[engine], -1, 0)
        sizes[engine] = np.array([float(stats.ess(x)) for x in each])
        seconds = fit.seconds * num_samples / (num_samples + num_warmup)
        quantiles = np.quantile(sizes[engine], [0, 0.5, 1])
        line[engine] = {
            "seconds": round(seconds, 1),
            "ess": [round(x) for x in quantiles],
            "ess_per_second": rounded(quantiles / seconds, 2),
            "worst_rhat": round(max(float(stats.rhat(x)) for x in each), 3),
        }
    spread = {engine: x.std((0, 1)) for engine, x in values.items()}
    errors = [spread[engine] / np.sqrt(sizes[engine]) for engine in values]
    gap = np.abs((values["gibbs"] - values["collapsed_gibbs"]).mean((0, 1)))
    ratio = sizes["collapsed_gibbs"] / sizes["gibbs"]
    line["ess_ratio"] = rounded(np.quantile(ratio, [0, 0.5, 1]), 2)
    line["gap_in_sd"] = rounded(np.quantile(gap / spread["gibbs"], [0.5, 1]), 3)
    line["gap_in_standard_errors"] = round(float(np.max(gap / np.hypot(*errors))), 2)
    sd_ratio = np.median(spread["collapsed_gibbs"] / spread["gibbs"])
    report("collapsed mixing", {"cores": CORES, **line, "sd_ratio": round(float(sd_ratio), 3)})


def curves_of(data, num_topics, sweeps, engines):
    """[sweeps, seconds, score] of one chain each."""
    train, heldout, _ = hold_out(data, 0.1)
    problem = one_device(train, num_topics)
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()

    @jax.jit
    def topics_of(key, stats, batch):
        def joint(beta):
            local = model.log_local(hyper, {**stats, "beta": beta}, batch, key)
            return model.log_global(hyper, {"beta": beta}) + local

        natural = jax.grad(joint)(stats["beta"])
        return natural / jnp.sum(natural, 1, keepdims=True)

    curves = {}
    for name in filter(None, engines):
        bound = bind(name, problem, num_samples=10, num_warmup=sweeps, num_chains=1)
        algorithm, key = bound.algorithm, jax.random.key(0)
        algorithm.step(key, algorithm.init(key, {}), ())  # compiles
        state, seconds, curves[name] = algorithm.init(key, {}), 0.0, []
        for done in range(10, sweeps + 1, 10):
            begin = time.perf_counter()
            state, _ = algorithm.step(jax.random.key(done), state, ())
            seconds += time.perf_counter() - begin
            if done in (10, 20, 50) or done % 100 == 0:
                chain = jax.tree.map(lambda x: x[0], state.chains[0])
                stats = chain if name == "gibbs" else chain.stats
                topics = topics_of(jax.random.key(1), stats, batch)
                score = completion_of(problem, topics, heldout)
                curves[name].append([done, round(seconds, 2), round(score, 4)])
    peer, seconds, curves["tomotopy"], last = same_posterior(train, num_topics), 0.0, [], 0
    for done in [10, 20, 50, *range(100, sweeps + 1, 100)]:
        begin = time.perf_counter()
        peer.train(done - last, workers=1)
        seconds, last = seconds + time.perf_counter() - begin, done
        score = completion_of(problem, tomotopy_topics(peer, train.num_columns), heldout)
        curves["tomotopy"].append([done, round(seconds, 2), round(score, 4)])
    return curves


def about(chosen):
    data = pp_models.readers.read(chosen.data)
    return data, {"cores": CORES, "documents": data.num_rows, "tokens": int(data.total)}


def speed(chosen):
    """Million tokens per second of a sweep, at 50 and 100 topics."""
    data, line = about(chosen)
    line["million tokens a second"] = {size: speed_at(data, size) for size in (50, 100)}
    report("collapsed speed", line)


def curve(chosen):
    """Held-out score against sweeps and seconds, beside tomotopy."""
    data, line = about(chosen)
    engines = chosen.engines.split(",")
    line["curves"] = curves_of(data, chosen.topics, chosen.sweeps, engines)
    report("collapsed curve", line)


if __name__ == "__main__":
    more = {"topics": 50, "sweeps": 200, "engines": "collapsed_gibbs,gibbs"}
    run_commands(__doc__, {speed: {"data": DATA}, mixing: {}, curve: {"data": DATA, **more}})
