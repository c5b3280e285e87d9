"""The parts of `widths` on a corpus: LDA beside Gibbs chains from its fit, and the cost."""

import sys
import time

import jax
import numpy as np
import scipy.sparse
from _common import peak_gigabytes
from _widths_tables import HEAD, flatten, print_table, quantities, row

import inference
import pp_models
from inference.comparison.modes import SETTLED
from inference.io import arviz

DRAWS = 1000
CHAINS, WARMUP, SAMPLES, THIN = 2, 1000, 1000, 10
RARE = 5  # words with fewer tokens in the documents are left out
FREQUENT = 20  # words of each topic, in a row of their own
WORDS, TOPICS = 10, 5  # whose widths are asked for


def against_chains(path, num_documents, num_topics):
    """Only numbers whose chains agree are compared."""
    matrix = scipy.sparse.csr_array(scipy.sparse.load_npz(path))[:num_documents]
    matrix = matrix[:, np.asarray(matrix.sum(0)).ravel() >= RARE]
    data, hyper = pp_models.data.counts(matrix), {"num_topics": num_topics}
    shared = {"hyper": hyper, "progress": False}
    fit = inference.fit("lda", data, "cavi", key=jax.random.key(0), **shared)
    corrected = fit.corrected()
    pivot = {site: corrected.mean(site) for site in fit.model.families}
    chains = inference.fit(
        *("lda", data, "gibbs"),
        key=jax.random.key(1),
        init=pivot,
        num_chains=CHAINS,
        num_warmup=WARMUP,
        num_samples=SAMPLES,
        thin=THIN,
        **shared,
    )
    drawn = chains.posterior.draws
    theirs = quantities(fit, flatten(drawn), pivot)
    plain = quantities(fit, fit.posterior.sample(jax.random.key(2), DRAWS), pivot)
    ours = quantities(fit, corrected.sample(jax.random.key(3), DRAWS), pivot)
    print(
        f"{data.num_rows} documents, {data.num_columns} words, K = {num_topics}, {CHAINS} chains "
        f"of {SAMPLES} draws, one in {THIN} sweeps. {' '.join(corrected.notes)}",
        file=sys.stderr,
    )
    print_table([(*HEAD, "settled")], is_head=True)
    beta = pivot["beta"]
    top = np.argsort(np.argsort(-beta, axis=1), axis=1) < FREQUENT
    for name, values in theirs.items():
        rhat = arviz.each_rhat(values.reshape(CHAINS, -1, values.shape[1]))
        settled = (rhat <= SETTLED) | (values.std(0) == 0)
        groups = {name: np.ones(len(settled), bool)}
        if name == "beta":
            groups[f"beta, {FREQUENT} words of each topic"] = top.ravel()
        for title, chosen in groups.items():
            found = row(title, values, plain[name], ours[name], chosen & settled)
            print_table([(*found.cells("lda"), f"{np.mean(settled[chosen]):.0%}")])


def cost(path, num_topics):
    """Seconds of wall clock and of all cores, cold and warm, and the peak memory after each."""
    matrix = scipy.sparse.csr_array(scipy.sparse.load_npz(path))
    data = pp_models.data.counts(matrix)
    frequent = np.argsort(-np.asarray(matrix.sum(0)).ravel())[:WORDS]
    rows, found = [], []

    def timed(name, function, *arguments):
        wall, busy = time.perf_counter(), time.process_time()
        made = function(*arguments)
        spent = time.perf_counter() - wall, time.process_time() - busy
        rows.append((name, *(f"{x:.1f}" for x in spent), f"{peak_gigabytes():.2f}"))
        print_table(rows[-1:])
        return made, np.array(spent)

    def fitted():
        hyper = {"num_topics": num_topics}
        return inference.fit("lda", data, "cavi", hyper, jax.random.key(0), progress=False)

    def widths(corrected):
        return corrected.covariance(lambda x: x["beta"][:TOPICS, frequent].ravel())

    head = ("step", "seconds", "seconds of all cores", "peak GB")
    print_table([head], is_head=True)
    for state in ("cold", "warm"):
        fit, own = timed(f"cavi, {state}", fitted)
        corrected, climbing = timed(f"to the maximum, {state}", fit.corrected)
        _, solving = timed(f"{TOPICS * WORDS} widths, {state}", widths, corrected)
        found.append((climbing + solving) / own)
    ratios = ", ".join(f"{x[0]:.1f} ({x[1]:.1f} of all cores)" for x in found)
    print(f"Widths take {ratios} times the fit, cold and warm. {' '.join(corrected.notes)}")
