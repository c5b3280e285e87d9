r"""Probabilities of votes on bills, from their text and any known votes (Hu et al. (H) 3.3, 5.2).

$$ p(B_{ij} \mid D) = \sum_m w_m \int p(d_i, s_j \mid D, \theta_m) \,
   \Phi(d_i^\top s_j + \mathrm{offset}_i) \, \mathrm{d}d_i \, \mathrm{d}s_j $$

is H(13), with the members' tastes $d_i$ and the bills' weights $s_j$. The sum is over the points
of a grid. A point estimate or a mean-field posterior is one point; draws are points of equal
weight. The other global sites, and the other members when $s_j$ is inferred, are fixed at each
point. `rows` selects the approximation of the integral:

| rows | probability of yea |
|---|---|
| `"plug_in"` | $\Phi(d_i^\top s_j + \mathrm{offset}_i)$ at the value of $d_i$ and the mode of $s_j$ (H) |
| `"gaussian"` | $\Phi\big((\mathrm{E}[d_i^\top s_j] + \mathrm{offset}_i) / \sqrt{1 + \mathrm{Var}[d_i^\top s_j]}\big)$ with the factors of H(10), truncated at zero, and H(11) |
| `"nested"` | the second Laplace approximation of INLA, one Newton search per vote |

The default is `"plug_in"` for point estimates, which is better calibrated on the House's missing
votes than a Laplace variance (docs/experiments.md), and `"gaussian"` otherwise. `"nested"` is the
most accurate on problems small enough to integrate, and the most expensive.
"""  # noqa: E501

import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from inference.evaluation import _vote_rows as density
from pp_models import families as fam
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError, unknown
from pp_models.families import Pair
from pp_models.model import Sites, check_count, positive_number

ROWS = ("gaussian", "plug_in", "nested")


class Part(NamedTuple):
    """One point of the sum. shared: statistics of the global sites. members: E d_i and E d_i d_i'.
    bills: (bills, K) weights of the fitted bills, for rows="nested"."""

    weight: float
    shared: Sites
    members: Pair
    bills: Any = None


# rows="plug_in" and rows="gaussian" ---------------------------------------------------------------


@partial(jax.jit, static_argnames=("model", "rows", "summary"))
def _yea(model, hyper, part, batch, options, rows, summary):
    """(bills, members) probabilities. summary "mean": bills have their mean-field distribution."""
    if summary == "mode" and rows == "gaussian":
        summary = "log_mode"  # the mode in log space is near the mean, also for weights near zero
    s = density.infer_bills(model, hyper, part.shared, batch, options, summary)
    if summary == "log_mode":
        bills = density.bills_given(model, hyper, part.shared, batch)
        here = jax.vmap(density.expand, (density.BILLS, 0))(bills, s.first)
        s = jax.vmap(density.truncated)(s.first, here)
    mean, offset = s.first @ part.members.first.T, model.votes.offsets(hyper)
    if rows == "plug_in":
        return ndtr(mean + offset)
    square = jnp.einsum("jkl,ikl->ji", s.second, part.members.second)
    return ndtr((mean + offset) / jnp.sqrt(1 + jnp.maximum(square - mean**2, 0)))


# rows="nested" ------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("model",))
def _odds(model, hyper, part, fitted, batch, options):
    """(bills, members) probabilities from Laplace approximations of p(d_i, s_j, B_ij | D, theta).

    One is made for B_ij = 1 and one for 0, each about its own mode in (d_i, log s_j); the ratio of
    the integrals is the odds (Tierney & Kadane 1986; Rue et al. 2009, 3.2).
    """
    s = density.infer_bills(model, hyper, part.shared, batch, options, "log_mode").first
    members = density.members_given(model, hyper, part.shared, part.bills, fitted)
    bills = density.bills_given(model, hyper, part.shared, batch)
    d, offset = part.members.first, bills.offset

    def one(each):
        text, sign, weights = each
        bill = bills._replace(linear=text, sign=sign)
        start = jnp.concatenate([d, jnp.broadcast_to(jnp.log(weights), d.shape)], 1)
        at = jax.vmap(density.together, (density.MEMBERS, None, None, 0, 0))

        def log_integral(vote):
            top = density.climb(lambda x: at(members, bill, vote, offset, x), start)
            # rounding may leave an eigenvalue that is not positive
            eigenvalues = jnp.maximum(jnp.linalg.eigvalsh(top.curvature), 1e-6)
            return top.value - 0.5 * jnp.sum(jnp.log(eigenvalues), 1)

        yea, nay = jax.vmap(log_integral)(jnp.array([1.0, -1.0]))
        return jax.nn.sigmoid(yea - nay)

    return jax.lax.map(one, (bills.linear, bills.sign, s))


# Predictions --------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("model",))
def _tastes(model, hyper, shared, bills, batch):
    """E d and E dd' of the normal approximations about a point estimate (H 11)."""
    members = density.members_given(model, hyper, shared, bills, batch)
    d = shared[model.votes.members].first
    curvature = jax.vmap(density.expand, (density.MEMBERS, 0))(members, d).curvature
    return Pair(d, jnp.linalg.inv(curvature) + density.outer(d))


def _stats(model: Any, values: dict[str, Any]) -> Sites:
    """Statistics of the global sites at these values."""
    return {s: model.families[s].stats(jnp.asarray(values[s], float)) for s in model.shared}


def _all_rows(data: Data) -> Any:
    return data.pack(np.arange(data.num_rows))


def _parts(fit: Any, num_draws: int, rows: str) -> tuple[list[Part], str]:
    """The points of H(13), and the summary by which bills are inferred there."""
    posterior, problem, model = fit.posterior, fit.problem, fit.model
    site, members = model.votes.rows, model.votes.members
    if posterior.has_density:
        shared = {s: posterior.statistics(s) for s in model.shared}
        return [Part(1.0, shared, shared[members])], "mean"
    if not posterior.has_spread:
        values = {s: posterior.mean(s) for s in posterior.sites}
        shared, bills = _stats(model, values), jnp.asarray(values[site], float)
        tastes = shared[members]
        if rows == "gaussian":
            tastes = _tastes(model, problem.hyper, shared, bills, _all_rows(problem.data))
        return [Part(1.0, shared, tastes, bills)], "mode"
    if posterior.has_chains:
        draws = posterior.sample(jax.random.key(0), num_draws)
        each = [_stats(model, {s: x[i] for s, x in draws.items()}) for i in range(num_draws)]
        return [Part(1 / num_draws, shared, shared[members]) for shared in each], "mean"
    parts = []
    for m, weight in enumerate(posterior.weights):  # a grid
        values = posterior.values(m)
        tastes = fam.normal.mean(jax.tree.map(jnp.asarray, posterior.natural[m][members]))
        bills = jnp.asarray(values[site], float)
        parts.append(Part(float(weight), _stats(model, values), tastes, bills))
    return parts, "mode"


def _check(fit: Any, data: Any, rows: str | None) -> str:
    """The approximation to use, after all checks."""
    if fit.model.votes is None or getattr(data, "kind", "") != "text_and_votes":
        raise InputError("predict_votes needs a model of votes, and data of text and votes.")
    posterior = fit.posterior
    if rows is None:
        rows = "gaussian" if posterior.has_spread else "plug_in"
    if rows not in ROWS:
        raise unknown("rows", rows, ROWS)
    if rows == "nested" and (posterior.has_density or posterior.has_chains):
        told = f"rows='nested' expands about modes, which {fit.engine} does not find"
        raise InputError(f"{told}: use rows='gaussian'.")
    expands = rows == "nested" or (rows == "gaussian" and not posterior.has_spread)
    if fit.data is None and expands:
        told = f"rows={rows!r} needs the fitted votes, which this fit was loaded without"
        raise InputError(f"{told}: pass data= to pp_models.load_fit.")
    words, members = fit.provenance["columns"], len(fit.posterior.mean(fit.model.votes.members))
    if (data.num_columns, data.num_members) != (words, members):
        raise InputError(
            f"The bills have {data.num_columns} words and {data.num_members} members, but the "
            f"model was fitted to {words} and {members}: use the same vocabulary and members."
        )
    return rows


def predict_votes(
    fit: Any, data: Data, rows: str | None = None, num_draws: int = 50, num_local: int = 200
) -> np.ndarray:
    """(bills, members) probabilities of yea on the bills of `data`, given their known votes.

    rows:      "gaussian", "plug_in" or "nested": how members and bills are integrated out; see the
               module for the default
    num_draws: draws of a Markov chain to average over
    num_local: maximum number of iterations for the bills' weights

    Votes that are nan in `data` are unknown. For a known vote, the probability is that of another
    vote of the same member on the same bill.
    """
    rows = _check(fit, data, rows)
    check_count("num_draws", num_draws)
    check_count("num_local", num_local)
    problem, batch, options = fit.problem, data.pack(), RowOptions(num_local, 1e-4)
    known = problem.model, problem.hyper
    parts, summary = _parts(fit, num_draws, rows)
    if rows == "nested":
        fitted = _all_rows(problem.data)
        found = [p.weight * _odds(*known, p, fitted, batch, options) for p in parts]
    else:
        found = [p.weight * _yea(*known, p, batch, options, rows, summary) for p in parts]
    return np.asarray(sum(found))


# Members refitted to what the text says -----------------------------------------------------------

NEWTON = 12  # steps from zero; the density is log-concave, and the last steps change nothing


@partial(jax.jit, static_argnames=("model",))
def _refitted(model, hyper, shared, precision, text, fitted, options):
    """(weights of the bills from their text alone, members' tastes at their mode given these)."""
    s = density.infer_bills(model, hyper, shared, text, options, "mode").first
    members = density.members_given(model, hyper, shared, s, fitted)
    members = members._replace(precision=precision * jnp.eye(s.shape[1]))

    def newton(_, d):
        here = jax.vmap(density.expand, (density.MEMBERS, 0))(members, d)
        return d + jnp.linalg.solve(here.curvature, here.gradient[..., None])[..., 0]

    start = jnp.zeros_like(shared[model.votes.members].first)
    return s, jax.lax.fori_loop(0, NEWTON, newton, start)


def refit_members(fit: Any, alpha2: float | None = None, num_local: int = 200) -> Any:
    """A copy of a fit by map whose bills' weights use their text alone, with members refitted.

    The weights of fitted bills depend on their votes, those of new bills cannot. Tastes fitted to
    the former are overconfident on the latter.

    alpha2: the tastes' precision, by default the fit's. It is relative to the scale of the text's
            weights, so choose it on held-out bills.
    """
    model, problem, data = fit.model, fit.problem, fit.data
    point = model.votes is not None and not fit.posterior.has_spread
    if not point or data is None or not data.num_columns:
        told = "refit_members needs a fit by map of a model of votes"
        raise InputError(f"{told}, with its data, to bills that have text.")
    check_count("num_local", num_local)
    values = {site: fit.posterior.mean(site) for site in fit.posterior.sites}
    shared, name = _stats(model, values), model.votes.precision
    precision = density.prior_precision(model, fit.hyper, shared)
    if alpha2 is not None:
        precision = positive_number(name, alpha2)
    fitted = _all_rows(data)
    text = fitted.replace(votes=fitted.votes.emptied())
    known = problem.model, problem.hyper, shared, jnp.asarray(precision, float)
    s, d = _refitted(*known, text, fitted, RowOptions(num_local, 1e-4))
    changed = {model.votes.rows: s, model.votes.members: d}
    new = copy.copy(fit)
    new.posterior = copy.copy(fit.posterior)
    if name in values:
        changed[name] = np.reshape(precision, (1,))
    else:
        hyper = problem.hyper._replace(**{name: jnp.asarray(precision, float)})
        new.problem = problem._replace(hyper=hyper)
    changed = {site: np.asarray(x, values[site].dtype) for site, x in changed.items()}
    new.posterior.values = values | changed
    return new
