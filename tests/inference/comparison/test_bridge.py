"""The evidence by bridge sampling against evidences that are known: closed forms, and sums over all
assignments.

Where it can be, draws are exact and independent, so that what is tested is the bridge and not a
Markov chain. Tolerances are multiples of the error that is reported; calibration tests hold that
error to the spread of estimates.
"""

import dataclasses
import itertools
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints
from scipy import stats
from scipy.special import betaln, gammaln

import inference
import pp_models
from inference.calibration import files
from inference.comparison import bridge, coordinates, marginal_likelihood
from inference.core import align
from inference.core.posteriors import Draws, Point
from inference.run import fit as fitting
from pp_models.errors import InputError

COUNTS = np.array([[3, 0, 1], [0, 3, 1], [2, 0, 0], [0, 1, 1]])
BINARY = np.array(
    [[1, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1], [0, 1, 1, 0]]
)
ALPHA, ETA = 0.9, 0.7


def as_fit(model, data, hyper, draws, num_chains=2):
    """A fit whose chains are the given draws (n, ...)."""
    problem = fitting.make_problem(model, data, hyper)
    chains = {
        site: np.asarray(x).reshape(num_chains, -1, *np.shape(x)[1:]) for site, x in draws.items()
    }
    return fitting.Fit(problem, "gibbs", {}, Draws(problem, chains), {}, 0.0)


def log_dirichlet_multinomial(counts, concentration):
    """log of the integral of prod x^counts over a symmetric Dirichlet, summed over leading axes."""
    counts = np.asarray(counts)
    size, total = counts.shape[-1], counts.sum(-1)
    one = (
        gammaln(size * concentration)
        - gammaln(size * concentration + total)
        + np.sum(gammaln(counts + concentration) - gammaln(concentration), -1)
    )
    return one.sum()


def assignments_of_words(counts, num_topics):
    """All ways to give the words topics: documents' counts (D, K) and topics' (K, V) of each."""
    document = np.repeat(np.arange(len(counts)), counts.sum(1))
    word = np.concatenate([np.repeat(np.arange(counts.shape[1]), row) for row in counts])
    for z in itertools.product(range(num_topics), repeat=len(word)):
        rows, topics = (
            np.zeros((len(counts), num_topics), int),
            np.zeros((num_topics, counts.shape[1]), int),
        )
        np.add.at(rows, (document, z), 1)
        np.add.at(topics, (z, word), 1)
        yield rows, topics


def exact_lda(num_draws, num_topics, seed=0, counts=COUNTS, eta=ETA, dtype=np.float64):
    """log p(data), summed over all assignments, and a fit with independent draws of the posterior,
    labels at random.
    """
    rng = np.random.default_rng(seed)
    cases = (
        list(assignments_of_words(counts, num_topics))
        if num_topics > 1
        else [(counts.sum(1)[:, None], counts.sum(0)[None])]
    )
    logs = np.array(
        [
            log_dirichlet_multinomial(rows, ALPHA) + log_dirichlet_multinomial(topics, eta)
            for rows, topics in cases
        ]
    )
    coefficient = np.sum(gammaln(counts.sum(1) + 1)) - np.sum(gammaln(counts + 1))
    weights = np.exp(logs - logs.max())
    picked = rng.choice(len(cases), num_draws, p=weights / weights.sum())
    draws = {
        "theta": np.array(
            [[rng.dirichlet(row + ALPHA) for row in cases[i][0]] for i in picked]
        ).astype(dtype),
        "beta": np.array(
            [[rng.dirichlet(row + eta) for row in cases[i][1]] for i in picked]
        ).astype(dtype),
    }
    fit = as_fit(
        "lda",
        pp_models.data.counts(counts),
        {"num_topics": num_topics, "alpha": ALPHA, "eta": eta},
        draws,
    )
    return logs.max() + np.log(weights.sum()) + coefficient, fit


def exact_mixture(num_draws, num_components, seed=0):
    """The same of the Bernoulli mixture, over all assignments of rows."""
    rng, (a, b, concentration) = np.random.default_rng(seed), (1.3, 0.8, 1.1)
    cases, logs = list(itertools.product(range(num_components), repeat=len(BINARY))), []
    member = np.array(
        [[np.equal(z, k) for k in range(num_components)] for z in cases], int
    )  # (cases, K, rows)
    ones, zeros = member @ BINARY, member @ (1 - BINARY)
    logs = [
        log_dirichlet_multinomial(m.sum(1), concentration)
        + np.sum(betaln(a + i, b + j) - betaln(a, b))
        for m, i, j in zip(member, ones, zeros, strict=True)
    ]
    weights = np.exp(np.array(logs) - max(logs))
    picked = rng.choice(len(cases), num_draws, p=weights / weights.sum())
    pi = np.array([rng.dirichlet(concentration + member[i].sum(1)) for i in picked])
    hyper = {"num_components": num_components, "a": a, "b": b, "concentration": concentration}
    fit = as_fit(
        "bernoulli_mixture",
        pp_models.data.dense(BINARY),
        hyper,
        {"pi": pi, "beta": rng.beta(a + ones[picked], b + zeros[picked])},
    )
    return max(logs) + np.log(weights.sum()), fit


def log_multigamma(x, size):
    return size * (size - 1) / 4 * math.log(math.pi) + np.sum(gammaln(x - np.arange(size) / 2))


def exact_gaussian(num_draws, seed=0):
    """One Gaussian with its conjugate prior, whose evidence is a ratio of normalisers. Means are
    real, precisions in NumPyro's own coordinates.
    """
    rng, size, (kappa, nu, scale) = np.random.default_rng(seed), 2, (0.5, 5.0, np.array([2.0, 3.0]))
    rows = rng.normal(size=(12, size)) @ np.array([[1.0, 0.6], [0.0, 0.8]]) + 0.7
    mean, number = rows.mean(0), len(rows)
    scatter = (
        np.diag(scale)
        + (rows - mean).T @ (rows - mean)
        + kappa * number / (kappa + number) * np.outer(mean, mean)
    )
    wanted = (
        log_multigamma((nu + number) / 2, size)
        - log_multigamma(nu / 2, size)
        + size / 2 * math.log(kappa / (kappa + number))
    )
    wanted += (
        nu / 2 * np.sum(np.log(scale))
        - (nu + number) / 2 * np.linalg.slogdet(scatter)[1]
        - number * size / 2 * math.log(math.pi)
    )
    precision = stats.wishart(nu + number, np.linalg.inv(scatter)).rvs(num_draws, random_state=rng)
    noise = np.linalg.solve(
        np.swapaxes(np.linalg.cholesky((kappa + number) * precision), 1, 2),
        rng.normal(size=(num_draws, size, 1)),
    )
    components = np.concatenate(
        [(number * mean / (kappa + number) + noise[..., 0])[:, None], precision], 1
    )[:, None]
    hyper = {"num_components": 1, "kappa": kappa, "nu": nu, "mean": 0.0, "scale": tuple(scale)}
    return wanted, as_fit(
        "gaussian_mixture",
        pp_models.data.dense(rows),
        hyper,
        {"pi": np.ones((num_draws, 1)), "components": components},
    )


EXACT = {
    "gaussian, one component": lambda seed: exact_gaussian(2000, seed),
    "lda, one topic": lambda seed: exact_lda(2000, 1, seed),
    "lda, two topics": lambda seed: exact_lda(2000, 2, seed),
    "mixture, one component": lambda seed: exact_mixture(2000, 1, seed),
    "mixture, two components": lambda seed: exact_mixture(2000, 2, seed),
    "mixture, three components": lambda seed: exact_mixture(2000, 3, seed),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if "one" in name else name for name in EXACT],
)
def test_known_evidences(name):
    """Within 4 standard errors, which are small: log 2 = 0.69 is more than 5 of them, so that K!
    would be missed for two labels, or K for three.
    """
    wanted, fit = EXACT[name](0)
    found = marginal_likelihood.log_evidence(fit)
    largest = 0.02 if "gaussian" in name else 0.01 if ", one" in name else 0.12
    assert found.method == "bridge sampling" and found.error < largest
    assert abs(found.value - wanted) < 4 * found.error
    if ", one" not in name:
        assert abs(found.value - math.log(2) - wanted) > 5 * found.error


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_errors_are_those_of_repeats(name):
    """Over 30 sets of draws, (estimate - evidence) / error has mean 0 and sd 1: within 0.6 (three
    errors of the mean) and between 0.65 and 1.6.
    """
    scores = []
    for seed in range(30):
        wanted, fit = EXACT[name](seed)
        found = marginal_likelihood.log_evidence(fit, key=jax.random.key(seed))
        scores.append((found.value - wanted) / found.error)
    assert abs(np.mean(scores)) < 0.6 and 0.65 < np.std(scores) < 1.6


def test_draws_rounded_to_zero():
    """Single precision underflows a proportion of concentration 0.05, of which log x has an sd of
    20, in one draw of eighty: 4 errors still.
    """
    counts = np.array([[5, 3, 0], [4, 4, 0]])
    wanted, fit = exact_lda(2000, 1, counts=counts, eta=0.05, dtype=np.float32)
    beta = fit.posterior.draws["beta"]
    fit.posterior.draws["beta"] = np.where(
        beta < np.finfo(np.float32).tiny, 0, beta
    )  # as XLA flushes them
    assert np.sum(fit.posterior.draws["beta"] == 0) > 10
    found = marginal_likelihood.log_evidence(fit)
    assert found.error < 0.02 and abs(found.value - wanted) < 4 * found.error + 0.002


def test_labels_and_pivot_do_not_matter():
    """Draws of other labels, and another pivot, give the same evidence within 4 errors; the labels
    alone the same to rounding.
    """
    wanted, fit = exact_lda(2000, 2)
    found = marginal_likelihood.log_evidence(fit)
    flat = {site: x.reshape(-1, *x.shape[2:]) for site, x in fit.posterior.draws.items()}
    orders = np.random.default_rng(3).permuted(np.tile([0, 1], (2000, 1)), axis=1)
    moved = as_fit("lda", fit.data, fit.hyper, align.permute(fit.model, flat, orders))
    _, pivot = align.common_labels(fit.model, flat, {site: x[0] for site, x in flat.items()})
    again = marginal_likelihood.log_evidence(moved, pivot)
    assert marginal_likelihood.log_evidence(fit, pivot)[:2] == pytest.approx(again[:2], rel=1e-6)
    assert abs(again.value - wanted) < 4 * again.error and abs(
        again.value - found.value
    ) < 4 * math.hypot(again.error, found.error)


@pytest.mark.slow
def test_a_chain_of_gibbs_agrees():
    """With the sum over all assignments, 4 errors: autocorrelated draws in single or double
    precision are what it is made for.
    """
    wanted, fit = exact_lda(10, 2)
    chain = inference.fit(
        "lda",
        fit.data,
        "gibbs",
        fit.hyper,
        num_samples=1000,
        num_warmup=200,
        num_chains=2,
        progress=False,
    )
    found = marginal_likelihood.log_evidence(chain)
    assert found.error < 0.2 and abs(found.value - wanted) < 4 * found.error


# The estimator ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_bridge_between_normals(rho):
    """c N(1, 1) against N(0, 1.5^2): log c, and an error that is the spread over 100 repeats, of
    chains with autocorrelation rho too.

    30 %: the spread of 100 repeats has an error of 7 %, effective sample sizes have one of 10-20 %.
    """
    rng, log_c, values, errors = np.random.default_rng(0), 700.0, [], []
    for _ in range(100):
        noise = rng.normal(size=(2, 400)) * math.sqrt(1 - rho**2)
        noise[:, 0] = rng.normal(size=2)
        for t in range(1, 400):
            noise[:, t] += rho * noise[:, t - 1]
        posterior, proposed = 1 + noise, 1.5 * rng.normal(size=800)
        ratios = [
            log_c - 0.5 * (x - 1) ** 2 + 0.5 * (x / 1.5) ** 2 + math.log(1.5)
            for x in (posterior, proposed)
        ]
        value, error = bridge.meng_wong(*ratios)
        values.append(value)
        errors.append(error)
    assert abs(np.mean(values) - log_c) < 3 * np.std(values) / 10
    assert 0.7 < np.sqrt(np.mean(np.square(errors))) / np.std(values) < 1.4


def test_densities_that_do_not_meet():
    """Nothing in common is an infinite or large error, no number."""
    assert not bridge.meng_wong(np.full((2, 50), 3.0), np.full(100, -np.inf))[1] < 10
    rng = np.random.default_rng(0)
    posterior = 40 + rng.normal(size=(2, 100))
    assert (
        bridge.meng_wong(
            0.5 * posterior**2 - 0.5 * (posterior - 40) ** 2,
            -0.5 * (rng.normal(size=200) - 40) ** 2,
        )[1]
        > marginal_likelihood.MOST_ERROR
    )


# Coordinates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("support", "value"),
    [
        (constraints.simplex, np.random.default_rng(0).dirichlet([0.3, 1, 2, 0.1], (5, 3))),
        (constraints.unit_interval, np.random.default_rng(1).beta(0.5, 0.5, (5, 2, 3))),
        (
            constraints.independent(constraints.positive, 1),
            np.random.default_rng(2).gamma(0.3, size=(5, 4)),
        ),
        (constraints.real, np.random.default_rng(3).normal(size=(5, 4))),
        (constraints.positive_definite, np.eye(3) + np.ones((5, 3, 3))),
    ],
)
def test_charts_are_bijections_with_their_slope(support, value):
    """There and back is the same value, and the slope that of NumPyro's bijection, or of
    differences where coordinates are our own (simplex).
    """
    chart = coordinates.make_chart(support, value.shape[1:])
    y = chart.to(value)
    back, slope = chart.back(y)
    np.testing.assert_allclose(back, value, rtol=1e-9)
    assert y.shape == (5, chart.size)
    if support is constraints.simplex:
        one = y[:1, :3]
        chart = coordinates.make_chart(support, (4,))
        jacobian = np.array(
            [
                (chart.back(one + h)[0] - chart.back(one - h)[0])[0, :3] / 2e-6
                for h in 1e-6 * np.eye(3)
            ]
        )
        np.testing.assert_allclose(
            chart.back(one)[1].sum(), np.linalg.slogdet(jacobian)[1], rtol=1e-6
        )
    else:
        theirs = biject_to(support)
        inverse = theirs.inv(value)
        np.testing.assert_allclose(
            slope.reshape(5, -1).sum(1),
            np.reshape(theirs.log_abs_det_jacobian(inverse, value), (5, -1)).sum(1),
            rtol=1e-6,
        )


def test_bent_coordinates_are_normal():
    """Logits of beta and logarithms of gamma draws, tiny concentrations among them, become standard
    normal; there and back is the same.

    20,000 draws: the Kolmogorov-Smirnov distance of a right transform exceeds 0.014 once in a
    thousand.
    """
    rng = np.random.default_rng(0)
    log_gamma = {
        a: np.log(rng.gamma(a + 1, size=20_000)) + np.log(rng.random(20_000)) / a
        for a in (0.02, 0.6, 40.0)
    }  # of tiny shapes too
    y = np.stack(
        [
            log_gamma[0.02] - log_gamma[0.6],
            log_gamma[40.0] - log_gamma[0.6],
            log_gamma[0.02] - 3,
            log_gamma[40.0] + 5,
        ],
        1,
    )
    marginals = coordinates.fit_marginals(y, np.array(["beta", "beta", "gamma", "gamma"]))
    x, slope = coordinates.to_normal(marginals, y)
    assert all(stats.kstest(column, "norm").statistic < 0.014 for column in x.T)
    back, again = coordinates.from_normal(marginals, x)
    np.testing.assert_allclose(back, y, rtol=1e-9, atol=1e-9)
    assert (
        np.mean(np.abs(again - slope) < 1e-9) > 0.999
    )  # at the nodes themselves either side is right


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=() if x == "lda" else pytest.mark.slow)
        for x in ("lda", "hpf", "ctm", "bayesian_nmf", "lg_nmf", "lg_nmf_votes", "gaussian_mixture")
    ],
)
def test_terms_of_the_density_add_up(name):
    """NumPyro's terms of global sites and of rows, in real coordinates, sum to F plus the slope of
    the coordinates, at draws of the references.
    """
    known = files.stored(name, Path(__file__).parents[2] / "references")
    fit = fitting.Fit(known.problem, "gibbs", {}, None, {}, 0.0)
    target, draws = marginal_likelihood.prepare(
        fit, {site: x[0, :3].astype(np.float64) for site, x in known.draws.items()}
    )
    shared, rows = target.log_density(target.to(draws))
    slopes = sum(
        chart.back(chart.to(draws[site]))[1].reshape(3, -1).sum(1)
        for site, chart in target.charts.items()
    )
    assert rows.shape == (3, known.data.num_rows if fit.model.local else 0)
    np.testing.assert_allclose(
        shared + rows.sum(1), fit.log_joint(draws) + slopes, rtol=1e-6
    )  # simplices of single precision


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_copies_that_relabelling_makes(size):
    """K! of K factors, and 2^K times as many where their signs are free."""
    rng, pmf = np.random.default_rng(0), pp_models.load("pmf")
    signs = dataclasses.replace(pmf, symmetry="signed_permutation")
    factors = {"u": rng.normal(size=(4, size)), "v": rng.normal(size=(6, size))}
    assert marginal_likelihood.log_copies(
        pp_models.load("lda"), {"beta": rng.dirichlet(np.ones(6), size)}
    ) == pytest.approx(math.log(math.factorial(size)))
    assert marginal_likelihood.log_copies(signs, factors) == pytest.approx(
        math.log(2**size * math.factorial(size))
    )
    assert marginal_likelihood.log_copies(dataclasses.replace(pmf, symmetry="none"), factors) == 0


# Refusals -----------------------------------------------------------------------------------------


def refused(fit, **options):
    with pytest.raises(InputError) as caught:
        marginal_likelihood.log_evidence(fit, **options)
    return str(caught.value)


def test_what_is_refused_says_why():
    """Rotations, scales, improper priors, priors that tell factors apart, too many unknowns, and
    what has no draws.
    """
    hyper, data = pp_models.load("pmf").example(jax.random.key(0))
    assert "rotations" in refused(
        as_fit("pmf", data, hyper, {"u": np.ones((20, 9, 2)), "v": np.ones((20, 6, 2))})
    )
    hyper, data = pp_models.load("nmf").example(jax.random.key(0))
    assert "improper" in refused(
        as_fit("nmf", data, hyper, {"theta": np.ones((20, 13, 3)), "beta": np.ones((20, 3, 8))})
    )
    _, fit = exact_lda(200, 2)
    assert "8 unknowns are too many" in refused(fit, num_draws=16)
    flat = {site: x.reshape(-1, *x.shape[2:]) for site, x in fit.posterior.draws.items()}
    assert "tells factors apart" in refused(
        as_fit("lda", fit.data, {"num_topics": 2, "alpha": (0.5, 0.9), "eta": ETA}, flat)
    )
    assert "at least 8 draws" in refused(
        as_fit("lda", fit.data, fit.hyper, {site: x[:6] for site, x in flat.items()})
    )
    point = fitting.Fit(fit.problem, "map", {}, Point(fit.problem, {}), {}, 0.0)
    assert "gibbs or nuts" in refused(point)


def test_unreliable_estimates_are_refused():
    """Chains that never left two far places, each with little spread, are not the posterior: the
    halves of q and p do not meet.
    """
    _, fit = exact_lda(400, 2)
    beta = np.random.default_rng(0).dirichlet([500, 300, 200], (2, 200, 2))
    fit.posterior.draws["beta"] = beta
    beta[:, 100:] = beta[:, 100:, :, ::-1]
    assert "cannot be told" in refused(fit)
