"""Votes on bills, from their text and what votes on them are known (H 13, H 5.2).

A bill's weights s are inferred given the fitted words and members; the probability of yea is then Phi(E[d2's]) at a point (H's choice), and
Phi(E[d2's] / sqrt(1 + Var[d2's])) under a distribution. Draws are averaged; so are grid points, each at its means (H's choice).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from inference import objective as obj
from pp_models import lg_nmf_votes
from pp_models.base import Sites, check_count
from pp_models.data import Data
from pp_models.eliminate import RowOptions
from pp_models.errors import InputError


@partial(jax.jit, static_argnames=("model", "structure", "summary"))
def _yea(model, structure, values, shared, batch, options, summary):
    hyper = obj.make(model, structure, values)
    start = obj.start_local(model, hyper, batch, summary)
    s = obj.local_part(model, hyper, shared, batch, start, options, summary).stats["s"]
    d2 = shared["d2"]
    mean = s.first @ d2.first.T
    square = jnp.einsum("jkl,ikl->ji", s.second, d2.second)
    spread = jnp.sqrt(1 + jnp.maximum(square - mean**2, 0))
    return ndtr((mean + lg_nmf_votes.offsets(hyper)) / spread)


def _shared(fit: Any, num_draws: int) -> tuple[list[tuple[float, Sites]], str]:
    """Statistics of the global sites with weights, and the summary that stands for the rows."""
    posterior, families, sites = fit.posterior, fit.model.families, fit.model.shared

    def at(values: dict[str, Any]) -> Sites:
        return {site: families[site].stats(jnp.asarray(values[site], float)) for site in sites}

    if posterior.kind == "variational":
        return [(1.0, {site: families[site].mean(jax.tree.map(jnp.asarray, posterior.natural(site))) for site in sites})], "mean"
    if posterior.kind == "point":
        return [(1.0, at({site: posterior.mean(site) for site in sites}))], "mode"
    if posterior.kind == "mixture":
        return [(weight, at(posterior.values(m))) for m, weight in enumerate(posterior.weights)], "mode"
    draws = posterior.sample(jax.random.key(0), num_draws)
    return [(1 / num_draws, at({site: x[i] for site, x in draws.items()})) for i in range(num_draws)], "mean"


def predict_votes(fit: Any, data: Data, num_draws: int = 50, num_local: int = 200) -> np.ndarray:
    """(bills, members) probabilities of yea for the bills of `data`, whose known votes, if any, are used. Missing ones are nan there."""
    if fit.model.name != "lg_nmf_votes" or not isinstance(data, Data) or data.kind != "text_and_votes":
        raise InputError("predict_votes needs a fit of lg_nmf_votes and data made with pp_models.data.text_and_votes.")
    check_count("num_draws", num_draws)
    check_count("num_local", num_local)
    members = len(fit.posterior.mean("d2"))
    if (data.num_columns, data.num_members) != (fit.provenance["columns"], members):
        raise InputError(
            f"The bills have {data.num_columns} words and {data.num_members} members, but the model was fitted to "
            f"{fit.provenance['columns']} and {members}: use the same vocabulary and members."
        )
    batch = data.pack()
    problem = fit.problem
    parts, summary = _shared(fit, num_draws)
    options = RowOptions(num_local, 1e-4)
    total = sum(weight * _yea(problem.model, problem.structure, problem.values, shared, batch, options, summary) for weight, shared in parts)
    return np.asarray(total)
