"""The runs behind a reference posterior: samplers, the quantities they are judged by, and their summaries with Monte-Carlo errors.

Quantities are of two groups. Invariant ones no relabelling or rotation of factors can change: every entry of the expected data `model.predict`, the
log joint density, and the sites without an axis of factors (hyper-parameters, scales of rows and columns). Aligned ones are all numbers of the other
sites, each draw taken to the representative of its orbit that lies nearest to the stored pivot (`inference.core.align`).

Errors: the mean of a quantity has standard error sd / sqrt(ess), with the effective sample size of the mean; its sd has that of the mean of
(x - mean)^2, divided by 2 sd.
"""

import functools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import HMC, MCMC

import inference
from inference.io import arviz
from inference.run.fit import Fit, make_problem
from pp_models.data.types import Data
from pp_models.model import Model, factor_axes, log_joint

Sites = dict[str, np.ndarray]
SUMMARY = (
    "mean",
    "sd",
    "q05",
    "q50",
    "q95",
    "mcse_mean",
    "mcse_sd",
    "rhat",
    "ess_bulk",
    "ess_tail",
)
LOG_JOINT = "log joint"
EXPECTED = "expected"


class Run(NamedTuple):
    """Draws of one sampler: site -> (chains, draws, ...), their log joint density (chains, draws), and divergent transitions (None: it has none)."""

    draws: Sites
    log_joint: np.ndarray
    divergences: int | None


def run(
    name: str,
    data: Data,
    hyper: Mapping[str, Any],
    sampler: str,
    options: Mapping[str, Any],
    key: jax.Array,
    progress: Any = None,
    checkpoint: Path | None = None,
) -> Run:
    """Draws by an engine of `inference`, or by "hmc": static Hamiltonian Monte Carlo on F. checkpoint: of an engine's run, which then goes on."""
    if sampler == "hmc":
        return _hmc(name, data, hyper, key, progress, **options)
    fit = inference.fit(
        name, data, sampler, dict(hyper), key, progress=progress, checkpoint=checkpoint, **options
    )
    stats = fit.posterior.sample_stats
    diverging = stats.get("diverging")
    return _finish(fit, fit.posterior.draws, None if diverging is None else int(np.sum(diverging)))


def _finish(fit: Any, draws: Sites, divergences: int | None) -> Run:
    chains, count = next(iter(draws.values())).shape[:2]
    flat = flatten(draws)
    return Run(
        {site: np.asarray(x) for site, x in draws.items()},
        fit.log_joint(flat).reshape(chains, count),
        divergences,
    )


def flatten(draws: Mapping[str, Any]) -> Sites:
    """The chains one after the other."""
    return {site: np.asarray(x).reshape(-1, *np.shape(x)[2:]) for site, x in draws.items()}


def _hmc(
    name,
    data,
    hyper,
    key,
    progress,
    num_samples,
    num_warmup,
    num_chains,
    target_accept,
    trajectory_length,
):
    """Static HMC, a kernel that makes no turns, on F, a density that shares no code with the one NUTS is given.

    Chains begin at random near the origin of the unconstrained space, as NumPyro's do: from draws of the prior the first steps would be tiny, and a
    trajectory of fixed length then takes thousands of them.
    """
    problem = make_problem(name, data, dict(hyper), devices=jax.local_devices()[:1])
    batch, model = data.pack(), problem.model
    start_key, run_key = jax.random.split(key)
    program = handlers.uncondition(model.generate)
    trace = handlers.trace(handlers.seed(program, start_key)).get_trace(problem.hyper, batch)
    to_values = {site: biject_to(trace[site]["fn"].support) for site in model.families}

    shapes = {site: turn.inv(trace[site]["value"]).shape for site, turn in to_values.items()}

    def values(free):
        return {site: turn(free[site]) for site, turn in to_values.items()}

    def potential(free):
        x = values(free)
        volume = sum(
            jnp.sum(turn.log_abs_det_jacobian(free[site], x[site]))
            for site, turn in to_values.items()
        )
        return -(log_joint(model, problem.hyper, x, batch) + volume)

    keys = dict(zip(shapes, jax.random.split(start_key, len(shapes)), strict=True))
    first = {
        site: jax.random.uniform(keys[site], (num_chains, *shape), minval=-1.0)
        for site, shape in shapes.items()
    }
    kernel = HMC(
        potential_fn=potential,
        target_accept_prob=target_accept,
        trajectory_length=trajectory_length,
    )
    sampler = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=bool(progress),
    )
    sampler.run(run_key, init_params=first, extra_fields=("diverging",))
    free = sampler.get_samples(group_by_chain=True)
    draws = jax.jit(jax.vmap(jax.vmap(values)))(free)
    fit = Fit(problem, "hmc", {}, None, {}, 0.0)
    return _finish(
        fit,
        {site: np.asarray(x) for site, x in draws.items()},
        int(np.sum(sampler.get_extra_fields()["diverging"])),
    )


# Quantities --------------------------------------------------------------------------------------------------------------------


class Quantities(NamedTuple):
    """labels: of each. invariant: (quantities,) whether no symmetry changes it. values: (chains, draws, quantities)."""

    labels: list[str]
    invariant: np.ndarray
    values: np.ndarray


def is_invariant(model: Model, site: str) -> bool:
    """Whether neither a permutation of factors nor a rotation of their space changes the site."""
    if model.symmetry == "none":
        return True
    return site not in model.rotation.sites and not factor_axes(model)[site]


@functools.partial(jax.jit, static_argnames=("model",))
def _expected(model, hyper, draws):
    return jax.lax.map(lambda x: model.predict(hyper, x), draws)


def expected(problem: Any, draws: Mapping[str, Any]) -> np.ndarray:
    """`model.predict` of each of the draws (n, ...)."""
    stacked = {site: jnp.asarray(draws[site]) for site in problem.model.families}
    return np.asarray(_expected(problem.model, problem.hyper, stacked))


def quantities(problem: Any, aligned: Mapping[str, Any], log_joints: np.ndarray) -> Quantities:
    """Everything a run is judged by; `aligned` holds draws (chains, draws, ...)."""
    model = problem.model
    chains, count = log_joints.shape
    rates = expected(problem, flatten(aligned))
    parts = [
        (EXPECTED, rates.reshape(chains, count, *rates.shape[1:]), True),
        (LOG_JOINT, log_joints, True),
    ]
    parts += [
        (site, np.asarray(aligned[site]), is_invariant(model, site)) for site in model.families
    ]
    labels, invariant, values = [], [], []
    for name, x, unchanged in parts:
        labels += [label(name, index) for index in np.ndindex(x.shape[2:])]
        columns = np.asarray(x, np.float64).reshape(chains, count, -1)
        invariant.append(np.full(columns.shape[-1], unchanged))
        values.append(columns)
    return Quantities(labels, np.concatenate(invariant), np.concatenate(values, -1))


def label(name: str, index: tuple[int, ...]) -> str:
    """As in "beta[2, 0]"."""
    return f"{name}[{', '.join(str(i) for i in index)}]" if index else name


def summarise(values: np.ndarray) -> dict[str, np.ndarray]:
    """`SUMMARY` of each quantity (chains, draws, quantities)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rows = [_summary(values[..., i]) for i in range(values.shape[-1])]
    return {name: np.array([row[name] for row in rows]) for name in SUMMARY}


def _summary(x: np.ndarray) -> dict[str, float]:
    stats = arviz.array_stats()
    mean, sd = x.mean(), x.std(ddof=1)
    out = {"mean": mean, "sd": sd} | dict(
        zip(("q05", "q50", "q95"), np.quantile(x, (0.05, 0.5, 0.95)), strict=True)
    )
    tail = {"prob": arviz.INTERVAL} if arviz.MODERN else {}
    square = (x - mean) ** 2
    return out | {
        "mcse_mean": sd / np.sqrt(stats.ess(x, method="mean")),
        "mcse_sd": square.std(ddof=1) / np.sqrt(stats.ess(square, method="mean")) / (2 * sd),
        "rhat": stats.rhat(x),
        "ess_bulk": stats.ess(x, method="bulk"),
        "ess_tail": stats.ess(x, method="tail", **tail),
    }


def differences(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], which: str
) -> np.ndarray:
    """Differences of means or sds between two independent runs, in units of their Monte-Carlo standard error."""
    error = np.sqrt(np.square(one[f"mcse_{which}"]) + np.square(other[f"mcse_{which}"]))
    return (one[which] - other[which]) / error
