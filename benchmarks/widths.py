"""Widths of mean field and of linear response beside reference posteriors.

    python benchmarks/widths.py tests/references/*.npz

Every row is a site or the expected data of a model: the median ratio of standard deviations to the
reference's, the share of the reference's draws in central 90 % intervals, and how far means are off
in sd (median). Figures of a hundred draws or fewer are noisy. Prints a Markdown table.
"""

import argparse
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import inference
from inference.calibration import files
from inference.core import align

DRAWS = 2000
MOST = 400  # entries of the expected data


def flatten(draws):
    return {site: np.asarray(x).reshape(-1, *x.shape[2:]) for site, x in draws.items()}


def quantities(fit, draws, pivot):
    """Name -> (draws, numbers): the expected data, and sites after alignment."""
    model, hyper = fit.model, fit.problem.hyper
    predict = jax.jit(lambda x: model.predict(hyper, x).reshape(-1)[:MOST])
    given = {site: jnp.asarray(x) for site, x in draws.items()}
    aligned = align.align_draws(model, draws, pivot)
    found = {"expected data": np.asarray(jax.lax.map(predict, given))}
    return found | {site: x.reshape(len(x), -1) for site, x in aligned.items()}


def row(reference, found):
    """The ratio of sds, the coverage, and the distance of the means."""
    sd = reference.std(0)
    good = sd > 1e-9
    ratio = np.median(found.std(0)[good] / sd[good])
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
    covered = np.mean(((low < reference) & (reference < high))[:, good])
    off = np.median(np.abs(found.mean(0) - reference.mean(0))[good] / sd[good])
    return ratio, covered, off


def compare(path):
    reference = files.load(path)
    fit = inference.fit(
        reference.model, reference.data, "cavi", reference.hyper, jax.random.key(0), progress=False
    )
    begin = time.perf_counter()
    corrected = fit.corrected()
    drawn = corrected.sample(jax.random.key(1), DRAWS)
    seconds = time.perf_counter() - begin
    pivot = {site: np.asarray(x) for site, x in reference.pivot.items()}
    theirs = quantities(fit, flatten(reference.draws), pivot)
    plain = quantities(fit, fit.posterior.sample(jax.random.key(2), DRAWS), pivot)
    ours = quantities(fit, drawn, pivot)
    for name, draws in theirs.items():
        before, after = row(draws, plain[name]), row(draws, ours[name])
        print(
            f"| `{reference.model}` | {name} | {before[0]:.2f} | {after[0]:.2f} "
            f"| {before[1]:.2f} | {after[1]:.2f} | {after[2]:.2f} |",
            flush=True,
        )
    print(
        f"{reference.model}: cavi {fit.seconds:.1f} s, correction {seconds:.1f} s. "
        + " ".join(corrected.notes),
        file=sys.stderr,
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("references", nargs="+", help="files of reference posteriors")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| model | quantity | sd, mean field | sd, corrected | covers, mean field "
        "| covers, corrected | means off |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in given.references:
        compare(path)


if __name__ == "__main__":
    main()
