"""Collapsed Gibbs for LDA: its speed beside `gibbs` and tomotopy, how well it mixes, and that it samples the same posterior.

    python benchmarks/collapsed.py speed --data bow.npz      tokens per second and device of a sweep, at 50 and 100 topics, taken in turn
    python benchmarks/collapsed.py mixing                    effective draws per second beside `gibbs` on a drawn corpus, and the gap in posterior sd
    python benchmarks/collapsed.py curve --data bow.npz      held-out score against sweeps and seconds, beside tomotopy with the same priors

Each prints one JSON line. Compiling is not counted. tomotopy's alpha is kept as given, so that all sample one posterior; all are scored by the
topics' conditional mean given one state of the allocations, (eta + counts) / total, by document completion (nats per held-out word).
"""

import argparse
import json
import os
import time

import jax
import numpy as np

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import arviz
import jax.numpy as jnp
from lda_throughput import Topics
from peers import tomotopy_model, tomotopy_topics

import inference
import pp_models
from inference.engines import _gibbs_sweep as gibbs
from inference.engines import collapsed_gibbs
from inference.evaluation import completion
from inference.run import fit as fitting
from pp_models.elimination import tokens as tk

ALPHA, ETA = 0.1, 0.05


def same_posterior(data, num_topics):
    """tomotopy with our priors, which stay as they are."""
    model = tomotopy_model(data, num_topics, alpha=ALPHA, eta=ETA)
    model.optim_interval = 0
    return model


def speed(data, num_topics, turns=5, warm=20):
    """Million tokens a second, and a second of processor time, which others on the machine disturb less; the best of some turns, one device."""
    problem = fitting.make_problem(
        "lda",
        data,
        {"num_topics": num_topics, "alpha": ALPHA, "eta": ETA},
        devices=jax.local_devices()[:1],
    )
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    tokens = tk.arrange(batch.entries, data.num_columns, tk.num_steps(data.totals))
    sweep = jax.jit(
        lambda key, chain, batch, tokens: collapsed_gibbs.sweep(
            model, hyper, key, chain, batch, tokens
        )
    )
    both = jax.jit(
        lambda key, chain, batch, tokens: gibbs.sweep(model, hyper, key, chain.stats, batch)
    )
    only = jax.jit(
        lambda key, chain, batch, tokens: tk.reallocate(
            key, tokens, chain.allocations, model.tokens.odds(hyper, chain.stats, batch)
        )
    )
    chain = collapsed_gibbs.Chain(
        gibbs.begin(problem, jax.random.key(0), {}), tk.unallocated(tokens, num_topics)
    )
    for i in range(warm):
        chain = sweep(jax.random.key(i), chain, batch, tokens)
    peer = same_posterior(data, num_topics)
    peer.train(warm, workers=1)
    runs = {
        "gibbs": lambda i: jax.block_until_ready(both(jax.random.key(i), chain, batch, tokens)),
        "collapsed_gibbs": lambda i: jax.block_until_ready(
            sweep(jax.random.key(i), chain, batch, tokens)
        ),
        "collapsed_gibbs, tokens alone": lambda i: jax.block_until_ready(
            only(jax.random.key(i), chain, batch, tokens)
        ),
        **{
            f"tomotopy, {n} workers": lambda i, n=n: peer.train(1, workers=n)
            for n in sorted({1, CORES})
        },
    }
    best = dict.fromkeys(runs, np.array([np.inf, np.inf]))
    for i in range(turns + 1):  # the first compiles
        for name, run in runs.items():
            begin = np.array([time.perf_counter(), time.process_time()])
            run(i)
            took = np.array([time.perf_counter(), time.process_time()]) - begin
            best[name] = np.minimum(best[name], took if i else np.inf)
    return {
        name: np.round(float(data.total) / seconds / 1e6, 2).tolist()
        for name, seconds in best.items()
    }


def drawn(num_rows=300, num_columns=300, num_topics=8, length=60, seed=0):
    rng = np.random.default_rng(seed)
    topics, shares = (
        rng.dirichlet(np.full(num_columns, 0.1), num_topics),
        rng.dirichlet(np.full(num_topics, 0.3), num_rows),
    )
    return pp_models.data.counts(
        np.stack(
            [
                rng.multinomial(n, p)
                for n, p in zip(rng.poisson(length, num_rows), shares @ topics, strict=True)
            ]
        )
    )


def functionals(fit, num_entries=60):
    """(chains, draws, functionals) that no relabelling changes: log joint, expected data where there are tokens, rows' concentration."""
    rows, columns = fit.problem.data.matrix.nonzero()
    chosen = np.random.default_rng(0).choice(len(rows), num_entries, replace=False)
    theta, beta = (fit.posterior.draws[site] for site in ("theta", "beta"))
    rates = np.einsum(
        "csnk,csnk->csn",
        theta[:, :, rows[chosen]],
        np.moveaxis(beta[:, :, :, columns[chosen]], 2, 3),
    )
    squares = np.square(theta).sum(-1)
    return np.concatenate(
        [
            fit.posterior.sample_stats["lp"][..., None],
            rates,
            squares[:, :, :20],
            squares.mean(-1)[..., None],
        ],
        -1,
    ).astype(float)


def mixing(num_samples=2000, num_warmup=1000):
    """From where `cavi` ends, so that both are in one mode, with two chains each."""
    data, found, line = drawn(), {}, {}
    start = inference.fit(
        "lda", data, "cavi", {"num_topics": 8, "alpha": 0.3, "eta": 0.1}, progress=False
    ).posterior.mean("beta")
    for engine in ("gibbs", "collapsed_gibbs"):
        shared = {
            "hyper": {"num_topics": 8, "alpha": 0.3, "eta": 0.1},
            "init": {"beta": start},
            "progress": False,
            "num_chains": 2,
        }
        inference.fit("lda", data, engine, num_samples=50, num_warmup=50, **shared)  # compiles
        fit = inference.fit(
            "lda", data, engine, num_samples=num_samples, num_warmup=num_warmup, **shared
        )
        found[engine] = functionals(fit)
        effective = np.array([float(arviz.ess(x)) for x in np.moveaxis(found[engine], -1, 0)])
        seconds = fit.seconds * num_samples / (num_samples + num_warmup)
        line[engine] = {
            "seconds": round(seconds, 1),
            "ess": [round(x) for x in np.quantile(effective, [0, 0.5, 1])],
        }
        line[engine]["ess_per_second"] = [
            round(x / seconds, 2) for x in np.quantile(effective, [0, 0.5, 1])
        ]
        line[engine]["worst_rhat"] = round(
            max(float(arviz.rhat(x)) for x in np.moveaxis(found[engine], -1, 0)), 3
        )
        line[engine]["ess_list"] = effective
    ratio = line["collapsed_gibbs"].pop("ess_list") / line["gibbs"]["ess_list"]
    errors = [
        found[e].std((0, 1)) / np.sqrt(line["gibbs"]["ess_list"] * (1 if e == "gibbs" else ratio))
        for e in found
    ]
    gap = (found["gibbs"] - found["collapsed_gibbs"]).mean((0, 1))
    del line["gibbs"]["ess_list"]
    line["ess_ratio"] = [round(x, 2) for x in np.quantile(ratio, [0, 0.5, 1])]
    line["gap_in_sd"] = [
        round(x, 3) for x in np.quantile(np.abs(gap) / found["gibbs"].std((0, 1)), [0.5, 1])
    ]
    line["gap_in_standard_errors"] = round(float(np.max(np.abs(gap) / np.hypot(*errors))), 2)
    line["sd_ratio"] = round(
        float(np.median(found["collapsed_gibbs"].std((0, 1)) / found["gibbs"].std((0, 1)))), 3
    )
    return line


def curve(data, num_topics, sweeps, engines):
    """[sweeps, seconds, score] of one chain each."""
    train, heldout, _ = completion.hold_out(data, 0.1)
    problem = fitting.make_problem(
        "lda",
        train,
        {"num_topics": num_topics, "alpha": ALPHA, "eta": ETA},
        devices=jax.local_devices()[:1],
    )
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()

    @jax.jit
    def topics_of(key, stats, batch):
        def joint(beta):
            return model.log_global(hyper, {"beta": beta}) + model.log_local(
                hyper, {**stats, "beta": beta}, batch, key
            )

        natural = jax.grad(joint)(stats["beta"])
        return natural / jnp.sum(natural, 1, keepdims=True)

    def score(topics):
        return round(
            float(
                inference.document_completion(
                    Topics(problem, jnp.asarray(topics, jnp.float32)), heldout
                ).value
            ),
            4,
        )

    curves = {}
    for name in filter(None, engines):
        engine, options = (
            {"gibbs": gibbs, "collapsed_gibbs": collapsed_gibbs}[name],
            {"num_samples": 10, "num_warmup": sweeps, "num_chains": 1},
        )
        algorithm = engine.build(problem, engine.Options(**options))
        algorithm.step(jax.random.key(0), algorithm.init(jax.random.key(0), {}), ())  # compiles
        state, seconds, curves[name] = algorithm.init(jax.random.key(0), {}), 0.0, []
        for done in range(10, sweeps + 1, 10):
            begin = time.perf_counter()
            state, _ = algorithm.step(jax.random.key(done), state, ())
            seconds += time.perf_counter() - begin
            if done in (10, 20, 50) or done % 100 == 0:
                chain = jax.tree.map(lambda x: x[0], state.chains[0])
                curves[name].append(
                    [
                        done,
                        round(seconds, 2),
                        score(
                            topics_of(
                                jax.random.key(1), chain if name == "gibbs" else chain.stats, batch
                            )
                        ),
                    ]
                )
    peer, seconds, curves["tomotopy"], last = same_posterior(train, num_topics), 0.0, [], 0
    for done in [10, 20, 50, *range(100, sweeps + 1, 100)]:
        begin = time.perf_counter()
        peer.train(done - last, workers=1)
        seconds, last = seconds + time.perf_counter() - begin, done
        curves["tomotopy"].append(
            [done, round(seconds, 2), score(tomotopy_topics(peer, train.num_columns))]
        )
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("speed", "mixing", "curve"))
    parser.add_argument("--data", help="documents x words, in any format that pp_models reads")
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--engines", default="collapsed_gibbs,gibbs")
    chosen = parser.parse_args()
    line: dict = {"benchmark": f"collapsed {chosen.what}", "cores": CORES}
    if chosen.what == "mixing":
        line |= mixing()
    else:
        data = pp_models.readers.read(chosen.data)
        line |= {"documents": data.num_rows, "tokens": int(data.total)}
        if chosen.what == "speed":
            line["million tokens a second"] = {size: speed(data, size) for size in (50, 100)}
        else:
            line["curves"] = curve(data, chosen.topics, chosen.sweeps, chosen.engines.split(","))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
