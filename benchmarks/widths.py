"""Widths of mean field and of linear response, as Markdown tables.

    python benchmarks/widths.py --references tests/references/*.npz
    python benchmarks/widths.py --references tests/references/lda.npz --sensitivities
    python benchmarks/widths.py --corpus bow.npz    # LDA beside Gibbs chains from its fit
    python benchmarks/widths.py --cost bow.npz      # seconds and memory of 50 widths

Every row of the first table is a site or the expected data of a model: the median ratio of standard
deviations to the reference's, the share of the reference's draws in central 90 % intervals, and how
far means are off in sd (median). Figures of a hundred draws or fewer are noisy. The table after it
says which medians lie within 0.93 to 1.07. Sensitivities are derivatives of expected data by each
hyper-parameter, beside differences of fits with it changed by 1 % to either side.
"""

import sys
import time
import warnings

import jax
import numpy as np
from _common import parse
from _widths_corpus import against_chains, cost
from _widths_tables import HEAD, expected, flatten, print_table, quantities, row

import inference
from inference.calibration import files

BAND = 0.93, 1.07
DRAWS = 2000
STEP, ENTRIES = 0.01, 20  # relative step of a hyper-parameter, and entries of the expected data
SETTLED = 1e-6  # sd from the maximum, of fits whose difference is taken


def fit_of(reference, hyper=None, **options):
    key, hyper = jax.random.key(0), hyper or reference.hyper
    return inference.fit(
        reference.model, reference.data, "cavi", hyper, key, progress=False, **options
    )


def compare(reference):
    """The rows of a reference, and what summarises them: the global sites and expected data."""
    fit = fit_of(reference)
    begin = time.perf_counter()
    corrected = fit.corrected()
    drawn = corrected.sample(jax.random.key(1), DRAWS)
    seconds = time.perf_counter() - begin
    pivot = {site: np.asarray(x) for site, x in reference.pivot.items()}
    theirs = quantities(fit, flatten(reference.draws), pivot)
    plain = quantities(fit, fit.posterior.sample(jax.random.key(2), DRAWS), pivot)
    ours = quantities(fit, drawn, pivot)
    rows = [row(name, theirs[name], plain[name], ours[name]) for name in theirs]
    print_table([one.cells(reference.model) for one in rows])
    note = " ".join(corrected.notes)
    print(
        f"{reference.model}: cavi {fit.seconds:.1f} s, correction {seconds:.1f} s. {note}",
        file=sys.stderr,
        flush=True,
    )
    sites = [one.name for one in rows if one.name in fit.model.shared]
    ratios = np.concatenate([(ours[x].std(0) / theirs[x].std(0)).ravel() for x in sites])
    data = next(one for one in rows if one.name == "expected data")
    return float(np.median(ratios[np.isfinite(ratios)])), data


def verdict(value):
    inside = BAND[0] <= value <= BAND[1]
    return f"{value:.2f}" if inside else f"**{value:.2f}**"


def beside_references(paths):
    print_table([HEAD], is_head=True)
    found = {}
    for path in paths:
        reference = files.load(path)
        found[reference.model] = compare(reference)
    print()
    head = ("model", "global sites, sd", "expected data, sd", "expected data, covers")
    print_table([head], is_head=True)
    for model, (sites, data) in found.items():
        cells = verdict(sites), verdict(data.corrected), f"{data.covers_corrected:.2f}"
        print_table([(f"`{model}`", *cells)])


def sensitivities(paths):
    """Derivatives by linear response beside central differences of fits."""
    head = ("model", "hyper-parameter", "slope", "of fits", "off by")
    print_table([head], is_head=True)
    for path in paths:
        reference = files.load(path)
        corrected = fit_of(reference).corrected(SETTLED)
        function = expected(corrected.problem, ENTRIES)
        slopes, values = corrected.sensitivity(function), corrected.problem.hyper._asdict()
        start = {site: corrected.natural(site) for site in corrected.problem.model.shared}
        for name, slope in slopes.items():
            value = float(np.asarray(values[name]).ravel()[0])
            if np.size(values[name]) == 1 and value != 0:
                ends = [mean_at(reference, {name: value * (1 + e)}, start) for e in (STEP, -STEP)]
                refitted = (ends[0] - ends[1]) / (2 * STEP * value)
                most, slope = int(np.argmax(np.abs(refitted))), np.ravel(slope)
                scale = max(abs(refitted[most]), 1e-30)
                off = np.max(np.abs(slope - refitted)) / scale
                cells = f"{slope[most]:.4g}", f"{refitted[most]:.4g}", f"{off:.2%}"
                print_table([(f"`{reference.model}`", f"`{name}`", *cells)])


def mean_at(reference, changed, start):
    """The expected data at the maximum of the bound with a hyper-parameter changed."""
    fit = fit_of(reference, {**reference.hyper, **changed}, init=start, num_epochs=20)
    corrected = fit.corrected(SETTLED)
    with jax.enable_x64(True):
        means = {site: np.asarray(corrected.mean(site), float) for site in corrected.sites}
        return np.asarray(expected(corrected.problem, ENTRIES)(means))


def main():
    given = parse(
        __doc__,
        references=([], "files of reference posteriors"),
        sensitivities=(False, "of these, in place of their widths"),
        corpus=("", "a sparse matrix of counts: LDA beside Gibbs"),
        cost=("", "such a matrix: seconds and memory"),
        documents=(200, "of the corpus"),
        topics=(0, "by default 10, for the cost 50"),
    )
    warnings.simplefilter("ignore")
    if given.references:
        (sensitivities if given.sensitivities else beside_references)(given.references)
    if given.corpus:
        against_chains(given.corpus, given.documents, given.topics or 10)
    if given.cost:
        cost(given.cost, given.topics or 50)


if __name__ == "__main__":
    main()
