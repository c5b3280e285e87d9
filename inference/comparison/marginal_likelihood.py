"""log p(data), the evidence of all data with every site integrated out, by bridge sampling from the draws of a Markov chain.

For a density q that can be drawn from, p~(x) = p(data, x) and any function h (Meng and Wong 1996),

    p(data) = E_q[p~ h] / E_p[q h],    best   h = 1 / (s1 p~ + s2 p(data) q),   s1 : s2 = effective draws from the posterior : from q,

which is iterated until p(data) rests. q is normal in coordinates in which the posterior nearly is (`coordinates`), with the mean and covariance of
one half of every chain; the other half, and as many draws from q, make the bridge. The halves then change places, and the mean of both logarithms
is the estimate. Given the global sites, rows of data are independent, and in q they are too: each row's local coordinates depend on the global ones
by a linear regression and on no other row's. Correlations are shrunk by the factor that makes q best, between quarters of the draws.

Rows being many, their small misfits add up. Each row therefore has `COPIES` draws of its local coordinates z instead of one, and

    p~(x, z) = p(x) prod_rows mean_s p(data_row, z_s | x) / q(z_s | x) x prod_s q(z_s | x)

in place of p(x, z): a density with the same integral, of which a draw is one of the posterior, put among COPIES - 1 others from q(z | x) (as in a
pseudo-marginal sampler). What is left of a row's misfit is that of a mean of importance ratios.

A posterior invariant to relabelling has K! copies of every mode (2^K K! where signs are free). Draws are aligned to a pivot (`align`), which puts
them into the region of values that alignment leaves as they are; of the orbit of any value exactly one lies in it. The bridge is to the posterior
restricted to that region: a draw from q which alignment would relabel has density 0 there, and log K! is added.

The error is the standard error of the logarithm (Fruehwirth-Schnatter 2004),

    error^2 = Var_q(f1) / (n2 E^2 f1) + Var_p(f2) / (ESS E^2 f2),    f1 = p~ / (s1 p~ + s2 c q) under q,  f2 = q / (s1 p~ + s2 c q) under p,

with the effective sample size of f2 along the chains; of two halves it is the root mean square over sqrt(2), and no less than half the difference of
the two. It knows nothing of modes that no chain has visited. Above `MOST_ERROR` nats, or where the iteration does not rest, there is no estimate but
an `InputError`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size

from inference.comparison import coordinates
from inference.core import align
from pp_models.errors import InputError
from pp_models.model import Model

MOST_ERROR = 0.5  # nats: a factor of 1.6 of the evidence
MOST_DIMENSIONS = 1000
DRAWS_PER_DIMENSION = 4
SHRINKAGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
MOST_ROUNDS = 1000
COPIES = 8  # draws of each row's local coordinates


class Evidence(NamedTuple):
    """value: log p(data) in nats. error: its standard error. method: in words."""

    value: float
    error: float
    method: str


class Target(NamedTuple):
    """The posterior in real coordinates y: charts of the sites, each number's family and its row of data (-1: a global site's), and the pivot."""

    fit: Any
    charts: dict[str, coordinates.Chart]
    bends: np.ndarray
    rows: np.ndarray
    pivot: align.Pivot

    def to(self, draws: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([chart.to(draws[site]) for site, chart in self.charts.items()], 1)

    def log_density(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p(global values) (n,) and log p(local values, data | global values) of each row (n, rows), both of y.

        The first is minus infinity where values are not the ones nearest to the pivot. Without local sites there are no rows: data count there.
        """
        number, fit = len(y), self.fit
        num_rows = fit.data.num_rows if fit.model.local else 0
        slopes, values = [np.zeros(number), np.zeros((number, num_rows))], {}
        parts = np.split(y, np.cumsum([chart.size for chart in self.charts.values()])[:-1], axis=1)
        for (site, chart), part in zip(self.charts.items(), parts, strict=True):
            values[site], slope = chart.back(part)
            is_local = site in fit.model.local
            if slope.size:
                slopes[is_local] += (
                    slope.reshape(number, num_rows, -1).sum(2)
                    if is_local
                    else slope.reshape(number, -1).sum(1)
                )
        values = coordinates.inside(values, self.charts)
        with jax.enable_x64(True):  # proportions of 1e-100 are as good as others
            found = _log_terms(
                fit.model, fit.problem.hyper, jax.tree.map(jnp.asarray, values), fit.data.pack()
            )
        shared, rows = (
            np.nan_to_num(np.asarray(x) + slope, nan=-np.inf)
            for x, slope in zip(found, slopes, strict=True)
        )
        return np.where(is_representative(fit.model, values, self.pivot), shared, -np.inf), rows


@partial(jax.jit, static_argnames=("model",))
def _log_terms(model, hyper, draws, batch):
    """Of each draw, NumPyro's log density of the global sites, and of each row's local sites and data (of mixtures, of all data with the former)."""

    def one(draw):
        program = handlers.substitute(handlers.seed(model.generate, jax.random.key(0)), data=draw)
        shared, rows = jnp.zeros(()), jnp.zeros(batch.num_rows if model.local else 0)
        for name, site in handlers.trace(program).get_trace(hyper, batch).items():
            if site["type"] == "sample":
                log_prob = site["fn"].log_prob(site["value"])
                if model.local and (name in model.local or site["is_observed"]):
                    rows += log_prob.reshape(batch.num_rows, -1).sum(1)
                else:
                    shared += jnp.sum(log_prob)
        return shared, rows

    return jax.lax.map(one, draws)


def log_evidence(
    fit: Any, pivot: Any = None, key: jax.Array | None = None, num_draws: int = 4000
) -> Evidence:
    """log p(data) from the draws of a fit by a Markov chain, with its standard error.

    pivot:     what draws are aligned to, of `align.common_labels`, or site -> value for it to begin with; by default made of the draws
    num_draws: most draws used, evenly thinned
    Refused, with the reason: posteriors invariant to rotations or scales, improper priors, priors that tell factors apart, more dimensions than a
    quarter of the draws or `MOST_DIMENSIONS`, and estimates whose error is above `MOST_ERROR` nats.
    """
    check(fit)
    chains = _thinned(fit, num_draws)
    shape = next(iter(chains.values())).shape[:2]
    target, draws = prepare(
        fit, {site: value.reshape(-1, *value.shape[2:]) for site, value in chains.items()}, pivot
    )
    y = target.to(draws)
    _check_size(y.shape[1], len(y))
    y = y.reshape(*shape, -1)
    rng = np.random.default_rng(
        np.asarray(jax.random.key_data(jax.random.key(0) if key is None else key)).ravel()
    )
    half = shape[1] // 2
    halves = y[:, :half], y[:, half : 2 * half]
    found = [_bridge(target, one, other, rng) for one, other in (halves, halves[::-1])]
    value = (found[0][0] + found[1][0]) / 2
    error = max(math.hypot(found[0][1], found[1][1]) / 2, abs(found[0][0] - found[1][0]) / 2)
    if not error <= MOST_ERROR:
        raise InputError(
            f"The log evidence cannot be told from these draws: {value:.1f} nats with a standard error of {error:.2g}, above {MOST_ERROR}. "
            "The posterior is too far from normal in its coordinates, or the chains are too short: draw more."
        )
    return Evidence(
        float(value + log_copies(fit.model, target.pivot)), float(error), "bridge sampling"
    )


# What can be done --------------------------------------------------------------------------------------------------------------


def check(fit: Any) -> None:
    """Refuse what bridge sampling cannot do."""
    model = fit.model
    if fit.posterior.kind != "draws":
        raise InputError(
            f"Bridge sampling needs draws of a Markov chain, and {fit.engine} found none: fit by gibbs or nuts."
        )
    if fit.data is None:
        raise InputError("This fit was loaded without its data: pass data= to inference.load.")
    if not model.proper(fit.hyper):
        raise InputError(f"The prior of {model.name} is improper: its data have no evidence.")
    if model.symmetry in ("rotation", "scale") or (
        model.rotation.sites and model.symmetry != "signed_permutation"
    ):
        what = "scales" if model.symmetry == "scale" else "rotations"
        raise InputError(
            f"The posterior of {model.name} is invariant to {what}, a continuum that no normal density bridges to: no evidence is computed."
        )


def _check_size(dimensions: int, number: int) -> None:
    if dimensions > MOST_DIMENSIONS or DRAWS_PER_DIMENSION * dimensions > number:
        raise InputError(
            f"{dimensions} unknowns are too many for the log evidence by bridge sampling from {number} draws: it takes "
            f"{DRAWS_PER_DIMENSION} draws for each, and at most {MOST_DIMENSIONS} unknowns."
        )


def log_copies(model: Model, pivot: Any) -> float:
    """The logarithm of the number of copies that relabelling makes of every value."""
    if model.symmetry == "none":
        return 0.0
    labels = align.find_labels(
        model, {site: np.asarray(value)[None] for site, value in pivot.items()}, pivot
    )
    size = 1 if labels.order is None else labels.order.shape[-1]
    return math.lgamma(size + 1) + (size * math.log(2) if labels.sign is not None else 0.0)


def is_representative(model: Model, values: Any, pivot: Any) -> np.ndarray:
    """Whether each of the values (n, *site shape) is the one of its orbit that is nearest to the pivot."""
    labels = align.find_labels(model, values, pivot)
    same = np.ones(len(next(iter(values.values()))), bool)
    if labels.order is not None:
        same &= np.all(labels.order == np.arange(labels.order.shape[-1]), -1)
    if labels.sign is not None:
        same &= np.all(labels.sign > 0, -1)
    return same


def _check_invariance(fit: Any, value: dict[str, np.ndarray], pivot: Any) -> None:
    """Exchanging two neighbouring labels must leave the joint density as it is; these exchanges generate all permutations."""
    labels = align.find_labels(fit.model, {site: x[None] for site, x in value.items()}, pivot)
    if labels.order is None:
        return
    size = labels.order.shape[-1]
    orders = np.array(
        [np.arange(size), *(np.r_[: k - 1, k, k - 1, k + 1 : size] for k in range(1, size))]
    )
    repeated = {site: np.repeat(x[None], size, 0) for site, x in value.items()}
    with jax.enable_x64(True):
        found = fit.log_joint(
            align.relabel(
                fit.model,
                repeated,
                align.Labels(orders, None if labels.sign is None else np.ones(orders.shape)),
            )
        )
    if np.ptp(found) > 1e-5 * max(
        1.0, abs(found[0])
    ):  # rounding of hyper-parameters in single precision cancels
        raise InputError(
            f"The prior of {fit.model.name} tells factors apart here, so its posterior is not invariant to their labels, and draws that were aligned "
            "do not have its density: no evidence is computed. Give all factors the same hyper-parameters."
        )


def _thinned(fit: Any, num_draws: int) -> dict[str, np.ndarray]:
    """Draws (chains, n, ...) of every site, evenly thinned."""
    draws = {site: np.asarray(fit.posterior.draws[site]) for site in fit.model.families}
    number, length = next(iter(draws.values())).shape[:2]
    if length < 2 * DRAWS_PER_DIMENSION:
        raise InputError(
            f"Bridge sampling needs chains of at least {2 * DRAWS_PER_DIMENSION} draws, not {length}."
        )
    pick = np.linspace(0, length - 1, max(2, min(length, num_draws // number))).round().astype(int)
    return {site: value[:, pick] for site, value in draws.items()}


def prepare(
    fit: Any, draws: dict[str, np.ndarray], pivot: Any = None
) -> tuple[Target, dict[str, np.ndarray]]:
    """The posterior restricted to the region around the pivot, and the draws (n, *site shape) in it."""
    model, kinds = fit.model, coordinates.supports(fit)
    charts = {
        site: coordinates.make_chart(kinds[site], value.shape[1:]) for site, value in draws.items()
    }
    draws = coordinates.inside(draws, charts)
    with jax.enable_x64(True):
        log_joint = fit.log_joint(draws)
    if not np.isfinite(log_joint).all():
        raise InputError(
            "Some draws have no finite joint density: run the chains anew, longer or in double precision."
        )
    best = {site: value[int(np.argmax(log_joint))] for site, value in draws.items()}
    if isinstance(pivot, align.Pivot):
        draws = align.align_draws(model, draws, pivot)
    else:  # the region needs the units of the cost too
        draws, pivot = align.common_labels(model, draws, best if pivot is None else pivot)
    _check_invariance(fit, best, pivot)
    sizes = {site: chart.size for site, chart in charts.items()}
    bends = np.concatenate([np.full(size, charts[site].bend) for site, size in sizes.items()])
    rows = [
        np.repeat(np.arange(n := draws[s].shape[1]), sizes[s] // n)
        if s in model.local
        else np.full(sizes[s], -1)
        for s in sizes
    ]
    return Target(fit, charts, bends, np.concatenate(rows), pivot), draws


# The density that is bridged from ---------------------------------------------------------------------------------------------


class Proposal(NamedTuple):
    """A normal density of x: global coordinates together, those of each row given them by regression, rows independent of each other.

    shared: which are global. local: (rows, p) which belong to each row. slopes: (rows, p, globals). shared_tril, local_tril: Cholesky factors
    """

    mean: np.ndarray
    shared: np.ndarray
    local: np.ndarray
    shared_tril: np.ndarray
    slopes: np.ndarray
    local_tril: np.ndarray

    def sample(self, rng: np.random.Generator, shared: np.ndarray | int) -> np.ndarray:
        """So many draws of x; or draws of the local coordinates beside those x whose global ones are to stay."""
        drawn = isinstance(shared, int)
        away = (
            rng.normal(size=(shared, len(self.shared))) @ self.shared_tril.T
            if drawn
            else (shared - self.mean)[:, self.shared]
        )
        x = np.empty((len(away), len(self.mean)))
        noise = np.einsum(
            "rij,nrj->nri", self.local_tril, rng.normal(size=(len(away), *self.local.shape))
        )
        x[:, self.shared] = away
        x[:, self.local] = noise + np.einsum("rig,ng->nri", self.slopes, away, optimize=True)
        return x + self.mean

    def log_density(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the global coordinates (n,), and of each row's given them (n, rows)."""
        away = x - self.mean
        shared = np.linalg.solve(self.shared_tril, away[:, self.shared].T)
        rest = away[:, self.local] - np.einsum(
            "rig,ng->nri", self.slopes, away[:, self.shared], optimize=True
        )
        local = np.linalg.solve(self.local_tril, np.moveaxis(rest, 0, -1))
        return _log_normal(shared, self.shared_tril), _log_normal(local, self.local_tril).T


def _log_normal(standard: np.ndarray, tril: np.ndarray) -> np.ndarray:
    """Log densities (..., n) of normals with Cholesky factors (..., d, d) at standardised values (..., d, n)."""
    log_det = np.log(np.diagonal(tril, axis1=-2, axis2=-1)).sum(-1)
    return (
        -0.5 * (np.sum(standard**2, -2) + tril.shape[-1] * math.log(2 * math.pi))
        - log_det[..., None]
    )


def fit_proposal(x: np.ndarray, rows: np.ndarray) -> Proposal:
    """To draws x (n, dimensions); correlations are shrunk by what fits the density of one half's moments to the other half best."""
    half = len(x) // 2
    parts = x[:half], x[half:]
    moments = [
        (part.mean(0), np.cov(part.T, bias=True).reshape(x.shape[1], x.shape[1]))
        for part in (*parts, x)
    ]

    def score(by: float) -> float:
        found = [_normal(*moments[i], rows, by).log_density(parts[1 - i]) for i in (0, 1)]
        return float(sum(shared.mean() + local.sum(1).mean() for shared, local in found))

    scores = [score(by) for by in SHRINKAGES]
    return _normal(*moments[2], rows, SHRINKAGES[int(np.nanargmax(scores))])


def _normal(
    mean: np.ndarray, covariance: np.ndarray, rows: np.ndarray, shrinkage: float
) -> Proposal:
    shared = np.flatnonzero(rows < 0)
    num_rows = rows.max() + 1 if len(rows) > len(shared) else 0
    local = (
        np.argsort(rows, kind="stable")[len(shared) :].reshape(num_rows, -1)
        if num_rows
        else np.zeros((0, 0), int)
    )
    variance = np.maximum(np.diagonal(covariance), 1e-12) * (1 + 1e-9)
    covariance = np.where(np.eye(len(mean), dtype=bool), variance, (1 - shrinkage) * covariance)

    inner, across = covariance[np.ix_(shared, shared)], covariance[local[..., None], shared]
    slopes = np.linalg.solve(inner, across.reshape(-1, len(shared)).T).T.reshape(across.shape)
    within = covariance[local[:, :, None], local[:, None, :]] - slopes @ np.swapaxes(across, 1, 2)
    return Proposal(mean, shared, local, _tril(inner), slopes, _tril(within))


def _tril(covariance: np.ndarray) -> np.ndarray:
    """Its Cholesky factor; with eigenvalues raised where there are too few draws for it to have one."""
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        least = 1e-6 * np.maximum(values.max(-1, keepdims=True), 1e-12)
        return np.linalg.cholesky(
            (vectors * np.maximum(values, least)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
        )


# The bridge --------------------------------------------------------------------------------------------------------------------


def _bridge(
    target: Target, fitted: np.ndarray, bridged: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """log of the integral over the region, and its standard error: q from `fitted`, the bridge from `bridged`, both (chains, n, dimensions)."""
    flat = fitted.reshape(-1, fitted.shape[-1])
    marginals = coordinates.fit_marginals(flat, target.bends)
    proposal = fit_proposal(coordinates.straighten(marginals, flat)[0], target.rows)
    x = coordinates.straighten(marginals, bridged.reshape(-1, bridged.shape[-1]))[0]
    posterior = _log_ratio(target, marginals, proposal, x, rng)
    proposed = _log_ratio(target, marginals, proposal, proposal.sample(rng, len(x)), rng)
    return meng_wong(posterior.reshape(bridged.shape[:2]), proposed)


def _log_ratio(
    target: Target,
    marginals: coordinates.Marginals,
    proposal: Proposal,
    x: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """log p~ / q of draws x (n, dimensions) whose rows get more draws from q."""

    def ratios(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y, slope = coordinates.bend(marginals, x)
        shared, rows = target.log_density(y)
        q_shared, q_rows = proposal.log_density(x)
        return shared + slope[:, proposal.shared].sum(1) - q_shared, rows + (
            slope[:, proposal.local].sum(2) - q_rows if q_rows.size else 0
        )

    shared, first = ratios(x)
    if not proposal.local.size:
        return shared + first.sum(1)
    total = first
    for _ in range(COPIES - 1):
        total = np.logaddexp(total, ratios(proposal.sample(rng, x))[1])
    return shared + np.sum(total - math.log(COPIES), 1)


def meng_wong(posterior: np.ndarray, proposed: np.ndarray) -> tuple[float, float]:
    """log of E_q[p~ h] / E_p[q h] with the best h, and its standard error, from log p~ / q at posterior (chains, n) and proposal draws (m,).

    The effective sample size of f2 decides on the weights, from a first solution with that of the log ratio.
    """
    size = _effective(posterior)
    for _ in range(2):
        share = size / (size + len(proposed))
        value, f1, f2 = _solve(posterior, proposed, share)
        size = _effective(f2)
    if not np.isfinite(value):
        return value, math.inf
    relative = np.var(f1) / np.mean(f1) ** 2 / len(f1) + np.var(f2) / np.mean(f2) ** 2 / size
    return value, math.sqrt(relative)


def _effective(chains: np.ndarray) -> float:
    """The effective sample size, at most the number of draws; of what does not vary, that number."""
    if np.ptp(chains) == 0:
        return float(chains.size)
    found = float(effective_sample_size(np.asarray(chains, np.float64)))
    return min(max(found, 1.0), chains.size) if np.isfinite(found) else 1.0


def _solve(
    posterior: np.ndarray, proposed: np.ndarray, share: float
) -> tuple[float, np.ndarray, np.ndarray]:
    """The fixed point log c, f1 and f2 (both times constants); nan where it does not rest or q never meets the posterior."""
    centre = float(np.median(posterior))
    log_share, log_rest = math.log(share), math.log1p(-share)
    log_c = 0.0

    def terms(log_c: float) -> tuple[np.ndarray, np.ndarray]:
        f1, f2 = (
            np.logaddexp(log_share + ratio - centre, log_rest + log_c)
            for ratio in (proposed, posterior)
        )
        return proposed - centre - f1, -f2

    for _ in range(MOST_ROUNDS):
        f1, f2 = terms(log_c)
        new = _log_mean(f1) - _log_mean(f2)
        if not np.isfinite(new):
            break
        if abs(new - log_c) < 1e-9:
            return new + centre, np.exp(f1 - f1.max()), np.exp(f2 - f2.max())
        log_c = new
    return math.nan, np.zeros(len(proposed)), np.zeros(posterior.shape)


def _log_mean(logs: np.ndarray) -> float:
    top = logs.max()
    return float(top + np.log(np.mean(np.exp(logs - top)))) if np.isfinite(top) else -math.inf
