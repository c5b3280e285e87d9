r"""log p(data) by bridge sampling from the draws of a Markov chain (`bridge`).

**The proposal** $q$ is normal in the coordinates of `coordinates`, with the moments of one half of
every chain. The other half and as many draws from $q$ make the bridge; then the halves change
places, and the two logarithms are averaged.

**Copies.** The misfits of many rows add up. Therefore each row has `COPIES` draws $z_s$ of its
local coordinates, and $\tilde p(x, z)$ is replaced by

$$ \tilde p(x) \prod_{\text{rows}} \frac{1}{S} \sum_s
   \frac{p(\text{data}_\text{row}, z_s \mid x)}{q(z_s \mid x)} \prod_s q(z_s \mid x), $$

which has the same integral (as in a pseudo-marginal sampler).

**Labels.** A posterior invariant to relabelling has $K!$ copies of every mode, $2^K K!$ with signs.
Draws are aligned to a pivot. The bridge is to the posterior restricted to the values that alignment
leaves as they are; other draws of $q$ have density 0, and $\log K!$ is added.

**The error** is that of the mean of the two logarithms, and no less than half their difference. It
knows nothing of modes that no chain has visited. Estimates with an error above `MOST_ERROR` nats
are refused.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from inference.comparison import bridge, coordinates
from inference.core import align
from pp_models.errors import InputError
from pp_models.model import Model

MOST_ERROR = 0.5  # nats: a factor of 1.6 of the evidence
MOST_DIMENSIONS = 1000
DRAWS_PER_DIMENSION = 4
COPIES = 8  # draws of each row's local coordinates
Values = dict[str, np.ndarray]


class Evidence(NamedTuple):
    """value: log p(data) in nats. error: its standard error."""

    value: float
    error: float
    method: str


class Target(NamedTuple):
    """The posterior in real coordinates y.

    families, rows: of each number, its family and its row of data (-1 for a global site)
    """

    fit: Any
    charts: dict[str, coordinates.Chart]
    families: np.ndarray
    rows: np.ndarray
    pivot: align.Pivot

    def to(self, draws: Values) -> np.ndarray:
        return np.concatenate([chart.to(draws[site]) for site, chart in self.charts.items()], 1)

    def log_density(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p(global values) (n,) and log p(local values, data | global values) (n, rows) of y.

        The first is minus infinity for values that alignment would relabel. Without local sites
        it contains the data.
        """
        number, fit = len(y), self.fit
        num_rows = fit.data.num_rows if fit.model.local else 0
        slopes, values = [np.zeros(number), np.zeros((number, num_rows))], {}
        parts = np.split(y, np.cumsum([chart.size for chart in self.charts.values()])[:-1], axis=1)
        for (site, chart), part in zip(self.charts.items(), parts, strict=True):
            values[site], slope = chart.back(part)
            is_local = site in fit.model.local
            shape = (number, num_rows, -1) if is_local else (number, -1)
            if slope.size:
                slopes[is_local] += slope.reshape(shape).sum(-1)
        values = coordinates.inside(values, self.charts)
        with jax.enable_x64(True):  # proportions of 1e-100 are as good as others
            draws = jax.tree.map(jnp.asarray, values)
            found = _log_terms(fit.model, fit.problem.hyper, draws, fit.data.pack())
        shared, rows = (
            np.nan_to_num(np.asarray(x) + slope, nan=-np.inf)
            for x, slope in zip(found, slopes, strict=True)
        )
        return np.where(is_representative(fit.model, values, self.pivot), shared, -np.inf), rows


@partial(jax.jit, static_argnames=("model",))
def _log_terms(model, hyper, draws, batch):
    """NumPyro's log density of the global sites, and of each row's local sites and data."""

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
    """log p(data) from a fit by a Markov chain, with its standard error.

    pivot:     of `align.common_labels`, or site -> value to start from (default: from the draws)
    num_draws: most draws used, evenly thinned
    Refused: posteriors invariant to rotations or scales, improper priors, priors that tell factors
    apart, too many dimensions for the draws, and estimates with a large error.
    """
    check(fit)
    key = jax.random.key(0) if key is None else key
    chains = fit.posterior.chains(key, num_draws)
    shape = next(iter(chains.values())).shape[:2]
    least = 2 * DRAWS_PER_DIMENSION
    if shape[1] < least:
        raise InputError(f"Bridge sampling needs chains of at least {least} draws, not {shape[1]}.")
    flat = {site: value.reshape(-1, *value.shape[2:]) for site, value in chains.items()}
    target, draws = prepare(fit, flat, pivot)
    y = target.to(draws)
    if y.shape[1] > min(MOST_DIMENSIONS, len(y) // DRAWS_PER_DIMENSION):
        raise InputError(
            f"{y.shape[1]} unknowns are too many for the log evidence by bridge sampling from "
            f"{len(y)} draws: it takes {DRAWS_PER_DIMENSION} draws for each, and at most "
            f"{MOST_DIMENSIONS} unknowns."
        )
    y = y.reshape(*shape, -1)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    half = shape[1] // 2
    halves = y[:, :half], y[:, half : 2 * half]
    values, errors = zip(
        *(_bridge(target, one, other, rng) for one, other in (halves, halves[::-1])), strict=True
    )
    value = sum(values) / 2
    error = max(math.hypot(*errors) / 2, abs(values[0] - values[1]) / 2)
    if not error <= MOST_ERROR:
        raise InputError(
            f"The log evidence cannot be told from these draws: {value:.1f} nats with a standard "
            f"error of {error:.2g}, above {MOST_ERROR}. The posterior is too far from normal in "
            "its coordinates, or the chains are too short: draw more."
        )
    total = float(value + log_copies(fit.model, target.pivot))
    return Evidence(total, float(error), "bridge sampling")


# Preparation --------------------------------------------------------------------------------------


def check(fit: Any) -> None:
    """Refuse posteriors that bridge sampling cannot handle."""
    model = fit.model
    if not fit.posterior.has_chains:
        raise InputError(
            f"Bridge sampling needs draws of a Markov chain, and {fit.engine} found none: fit by "
            "gibbs or nuts."
        )
    if fit.data is None:
        raise InputError("This fit was loaded without its data: pass data= to pp_models.load_fit.")
    if not model.proper(fit.hyper):
        raise InputError(f"The prior of {model.name} is improper: its data have no evidence.")
    rotates = model.rotation.sites and model.symmetry != "signed_permutation"
    if model.symmetry in ("rotation", "scale") or rotates:
        what = "scales" if model.symmetry == "scale" else "rotations"
        raise InputError(
            f"The posterior of {model.name} is invariant to {what}, which a normal density does "
            "not bridge to: no evidence is computed."
        )


def log_copies(model: Model, pivot: Any) -> float:
    """The logarithm of the number of relabelled copies of a value."""
    if model.symmetry == "none":
        return 0.0
    one = {site: np.asarray(value)[None] for site, value in pivot.items()}
    labels = align.find_labels(model, one, pivot)
    size = 1 if labels.order is None else labels.order.shape[-1]
    return math.lgamma(size + 1) + (size * math.log(2) if labels.sign is not None else 0.0)


def is_representative(model: Model, values: Any, pivot: Any) -> np.ndarray:
    """Whether alignment leaves each of the values (n, ...) as it is."""
    labels = align.find_labels(model, values, pivot)
    same = np.ones(len(next(iter(values.values()))), bool)
    if labels.order is not None:
        same &= np.all(labels.order == np.arange(labels.order.shape[-1]), -1)
    if labels.sign is not None:
        same &= np.all(labels.sign > 0, -1)
    return same


def _check_invariance(fit: Any, value: Values, pivot: Any) -> None:
    """Exchanging two neighbouring labels must not change the joint density."""
    labels = align.find_labels(fit.model, {site: x[None] for site, x in value.items()}, pivot)
    if labels.order is None:
        return
    size = labels.order.shape[-1]
    swapped = (np.r_[: k - 1, k, k - 1, k + 1 : size] for k in range(1, size))
    orders = np.array([np.arange(size), *swapped])
    repeated = {site: np.repeat(x[None], size, 0) for site, x in value.items()}
    signs = None if labels.sign is None else np.ones(orders.shape)
    with jax.enable_x64(True):
        found = fit.log_joint(align.relabel(fit.model, repeated, align.Labels(orders, signs)))
    if np.ptp(found) > 1e-5 * max(1.0, abs(found[0])):  # hyper-parameters are single precision
        raise InputError(
            f"The prior of {fit.model.name} tells factors apart here, so its posterior is not "
            "invariant to their labels: no evidence is computed. Give all factors the same "
            "hyper-parameters."
        )


def prepare(fit: Any, draws: Values, pivot: Any = None) -> tuple[Target, Values]:
    """The posterior restricted to the region around the pivot, and the draws (n, ...) in it."""
    model, kinds = fit.model, coordinates.supports(fit)
    charts = {
        site: coordinates.make_chart(kinds[site], value.shape[1:]) for site, value in draws.items()
    }
    draws = coordinates.inside(draws, charts)
    with jax.enable_x64(True):
        log_joint = fit.log_joint(draws)
    if not np.isfinite(log_joint).all():
        raise InputError(
            "Some draws have no finite joint density: run longer chains, or in double precision."
        )
    best = {site: value[int(np.argmax(log_joint))] for site, value in draws.items()}
    if isinstance(pivot, align.Pivot):
        draws = align.align_draws(model, draws, pivot)
    else:  # the region needs the units of the cost too
        draws, pivot = align.common_labels(model, draws, best if pivot is None else pivot)
    _check_invariance(fit, best, pivot)
    families, rows = [], []
    for site, chart in charts.items():
        families.append(np.full(chart.size, chart.family))
        rows.append(np.full(chart.size, -1))
        if site in model.local:
            number = draws[site].shape[1]
            rows[-1] = np.repeat(np.arange(number), chart.size // number)
    return Target(fit, charts, np.concatenate(families), np.concatenate(rows), pivot), draws


def _bridge(
    target: Target, fitted: np.ndarray, bridged: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """The log integral over the region and its error: q from one half, the bridge from the other.

    fitted, bridged: (chains, n, dimensions)
    """
    flat = fitted.reshape(-1, fitted.shape[-1])
    marginals = coordinates.fit_marginals(flat, target.families)
    proposal = bridge.fit_proposal(coordinates.to_normal(marginals, flat)[0], target.rows)
    x = coordinates.to_normal(marginals, bridged.reshape(-1, bridged.shape[-1]))[0]

    def ratios(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y, slope = coordinates.from_normal(marginals, x)
        shared, rows = target.log_density(y)
        q_shared, q_rows = proposal.log_density(x)
        if q_rows.size:
            rows = rows + slope[:, proposal.local].sum(2) - q_rows
        return shared + slope[:, proposal.shared].sum(1) - q_shared, rows

    def log_ratio(x: np.ndarray) -> np.ndarray:
        """log p~ / q of draws whose rows get more draws from q."""
        shared, total = ratios(x)
        if not proposal.local.size:
            return shared + total.sum(1)
        for _ in range(COPIES - 1):
            total = np.logaddexp(total, ratios(proposal.resample(rng, x))[1])
        return shared + np.sum(total - math.log(COPIES), 1)

    posterior = log_ratio(x).reshape(bridged.shape[:2])
    return bridge.meng_wong(posterior, log_ratio(proposal.sample(rng, len(x))))
