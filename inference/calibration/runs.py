r"""The runs behind a reference posterior, the quantities they are judged by, and their summaries.

Invariant quantities are those that no relabelling or rotation of factors changes: every entry of
the expected data `model.predict`, the log joint density, and the sites without an axis of factors.
Aligned ones are all numbers of the other sites, aligned to the stored pivot (`core.align`).

The Monte Carlo error of a mean is $\text{sd} / \sqrt{\text{ESS}}$; that of an sd is the error of
the mean of $(x - \bar x)^2$ divided by $2\,\text{sd}$.
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

from inference.io import arviz
from inference.run.fit import Fit, fit, make_problem
from pp_models.data.types import Data
from pp_models.model import Model, factor_axes, log_joint

Sites = dict[str, np.ndarray]
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
SUMMARY = ("mean", "sd", *QUANTILES, "mcse_mean", "mcse_sd", "rhat", "ess_bulk", "ess_tail")
LOG_JOINT = "log joint"
EXPECTED = "expected"


class Run(NamedTuple):
    """Draws of one sampler: site -> (chains, draws, ...), and their log joint (chains, draws).

    divergences: None for samplers without any
    """

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
    """Draw by an engine, or by "hmc": static HMC on F. An engine goes on from its checkpoint."""
    if sampler == "hmc":
        return _hmc(name, data, hyper, key, progress, options)
    about = {"progress": progress, "checkpoint": checkpoint}
    found = fit(name, data, sampler, dict(hyper), key, **about, **options)
    diverging = found.posterior.sample_stats.get("diverging")
    divergences = None if diverging is None else int(np.sum(diverging))
    return _finish(found, found.posterior.draws, divergences)  # type: ignore[attr-defined]


def _finish(found: Any, draws: Sites, divergences: int | None) -> Run:
    shape = next(iter(draws.values())).shape[:2]
    values = {site: np.asarray(x) for site, x in draws.items()}
    return Run(values, found.log_joint(flatten(draws)).reshape(shape), divergences)


def flatten(draws: Mapping[str, Any]) -> Sites:
    """The chains one after the other."""
    return {site: np.asarray(x).reshape(-1, *np.shape(x)[2:]) for site, x in draws.items()}


def _hmc(name, data, hyper, key, progress, options):
    """Static HMC on F: neither the kernel nor the density of NUTS.

    Chains start near the origin of the unconstrained space. From draws of the prior the first steps
    would be tiny, and a trajectory of fixed length would take thousands of them.
    """
    problem = make_problem(name, data, dict(hyper), devices=jax.local_devices()[:1])
    batch, model = data.pack(), problem.model
    start_key, run_key = jax.random.split(key)
    program = handlers.seed(model.generate, start_key)
    trace = handlers.trace(program).get_trace(problem.hyper, batch.replace(observed=False))
    maps = {site: biject_to(trace[site]["fn"].support) for site in model.families}

    def values(free):
        return {site: to(free[site]) for site, to in maps.items()}

    def potential(free):
        x = values(free)
        slopes = [to.log_abs_det_jacobian(free[site], x[site]) for site, to in maps.items()]
        return -(log_joint(model, problem.hyper, x, batch) + sum(map(jnp.sum, slopes)))

    first, chains = {}, options["num_chains"]
    keys = jax.random.split(start_key, len(maps))
    for (site, to), site_key in zip(maps.items(), keys, strict=True):
        shape = to.inv(trace[site]["value"]).shape
        first[site] = jax.random.uniform(site_key, (chains, *shape), minval=-1.0)
    kernel = HMC(
        potential_fn=potential,
        target_accept_prob=options["target_accept"],
        trajectory_length=options["trajectory_length"],
    )
    sampler = MCMC(
        kernel,
        num_warmup=options["num_warmup"],
        num_samples=options["num_samples"],
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=bool(progress),
    )
    sampler.run(run_key, init_params=first, extra_fields=("diverging",))
    draws = jax.jit(jax.vmap(jax.vmap(values)))(sampler.get_samples(group_by_chain=True))
    divergences = int(np.sum(sampler.get_extra_fields()["diverging"]))
    return _finish(Fit(problem, "hmc", {}, None, {}, 0.0), draws, divergences)


# Quantities ---------------------------------------------------------------------------------------


class Quantities(NamedTuple):
    """labels, and whether each is invariant; values: (chains, draws, quantities)."""

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
    return np.asarray(_expected(problem.model, problem.hyper, dict(draws)))


def quantities(problem: Any, aligned: Mapping[str, Any], log_joints: np.ndarray) -> Quantities:
    """All quantities of a run; `aligned` holds draws (chains, draws, ...)."""
    model, shape = problem.model, log_joints.shape
    rates = expected(problem, flatten(aligned))
    parts = {EXPECTED: rates.reshape(*shape, *rates.shape[1:]), LOG_JOINT: log_joints}
    parts |= {site: np.asarray(aligned[site]) for site in model.families}
    labels, invariant, values = [], [], []
    for name, x in parts.items():
        indices = list(np.ndindex(x.shape[2:]))
        labels += [f"{name}[{', '.join(map(str, i))}]" if i else name for i in indices]
        unchanged = name not in model.families or is_invariant(model, name)
        invariant += [unchanged] * len(indices)
        values.append(np.asarray(x, np.float64).reshape(*shape, -1))
    return Quantities(labels, np.array(invariant), np.concatenate(values, -1))


def summarise(values: np.ndarray) -> dict[str, np.ndarray]:
    """`SUMMARY` of each quantity (chains, draws, quantities)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rows = [_summary(values[..., i]) for i in range(values.shape[-1])]
    return {name: np.array([row[name] for row in rows]) for name in SUMMARY}


def _summary(x: np.ndarray) -> dict[str, float]:
    mean, sd = x.mean(), x.std(ddof=1)
    square = (x - mean) ** 2
    out = {"mean": mean, "sd": sd}
    out |= {name: np.quantile(x, level) for name, level in QUANTILES.items()}
    error = square.std(ddof=1) / np.sqrt(arviz.effective_size(square))
    return out | {
        "mcse_mean": sd / np.sqrt(arviz.effective_size(x)),
        "mcse_sd": error / (2 * sd),
        "rhat": float(arviz.array_stats().rhat(x)),
        "ess_bulk": arviz.effective_size(x, "bulk"),
        "ess_tail": arviz.effective_size(x, "tail"),
    }


def differences(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], which: str
) -> np.ndarray:
    """Differences of means or sds of two runs, in units of their Monte Carlo standard error."""
    error = np.hypot(one[f"mcse_{which}"], other[f"mcse_{which}"])
    return (one[which] - other[which]) / error
