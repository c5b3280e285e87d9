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
votes than a Laplace variance (docs/calibration.md), and `"gaussian"` otherwise. `"nested"` is the
most accurate on problems small enough to integrate, and the most expensive.
"""  # noqa: E501

import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jax.scipy.special import log_ndtr, ndtr

from inference.core import objective as obj
from pp_models import families as fam
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError, unknown
from pp_models.families import Pair
from pp_models.families import positive_normal as pos
from pp_models.model import Sites, check_count, positive_number

ROWS = ("gaussian", "plug_in", "nested")


class Part(NamedTuple):
    """One point of the sum over m.

    shared: statistics of the global sites, given which bills are inferred
    members: E d_i and E d_i d_i'
    bills: (bills, K) weights of the fitted bills, needed by rows="nested"
    """

    weight: float
    shared: Sites
    members: Pair
    bills: Any = None


# The conditional density of one row ---------------------------------------------------------------


class Conditional(NamedTuple):
    r"""The log density of a member's tastes or a bill's weights x given everything else,

    $$ b^\top x - \tfrac12 x^\top P x
       + \sum_n \log \Phi\big(\mathrm{sign}_n (p_n^\top x + \mathrm{offset}_n)\big) $$

    The partners $p_n$ of a member are the bills (H 11), those of a bill the members (H 10). Text is
    in b and P. pairs: (N, K K) outer products of the partners, so that the curvatures of many x are
    one matrix product. sign: 1 yea, -1 nay, 0 no vote.
    """

    linear: jax.Array
    precision: jax.Array
    partners: jax.Array
    pairs: jax.Array
    sign: jax.Array
    offset: jax.Array


# vmap axes: members share the bills, bills share the members
MEMBERS = Conditional(None, None, None, None, 0, 0)  # type: ignore[arg-type]
BILLS = Conditional(0, None, None, None, 0, None)  # type: ignore[arg-type]


class Expansion(NamedTuple):
    """Value, gradient and negative Hessian of a log density at a point."""

    value: jax.Array
    gradient: jax.Array
    curvature: jax.Array


def _link(t: jax.Array) -> Expansion:
    """log Phi, whose curvature lies between 0 and 1."""
    value = log_ndtr(t)
    slope = jnp.exp(-0.5 * t**2 - 0.5 * jnp.log(2 * jnp.pi) - value)
    return Expansion(value, slope, jnp.clip(slope * (slope + t), 0, 1))


def _expand(rest: Conditional, x: jax.Array) -> Expansion:
    link = _link(rest.sign * (rest.partners @ x + rest.offset))
    seen = rest.sign != 0
    pulled = rest.precision @ x
    return Expansion(
        rest.linear @ x - 0.5 * x @ pulled + jnp.sum(jnp.where(seen, link.value, 0)),
        rest.linear - pulled + (rest.sign * link.gradient) @ rest.partners,
        rest.precision + (jnp.where(seen, link.curvature, 0) @ rest.pairs).reshape(len(x), len(x)),
    )


def _pairs(x: jax.Array) -> jax.Array:
    return (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)


def _signs(batch: Any) -> jax.Array:
    """(bills, members): 1 yea, -1 nay, 0 unknown."""
    cast = batch.votes.dense(batch.num_members, fill=jnp.nan)
    seen = ~jnp.isnan(cast) & (batch.mask[:, None] > 0)
    return jnp.where(seen, jnp.where(cast > 0, 1.0, -1.0), 0.0)


def _precision(model: Any, hyper: Any, shared: Sites) -> jax.Array:
    """Prior precision of the members' tastes, a site or given."""
    name = model.votes.precision
    return shared[name].second[0] if name in shared else jnp.asarray(getattr(hyper, name))


def _offsets(model: Any, hyper: Any, num_members: int) -> jax.Array:
    return jnp.zeros(num_members) + model.votes.offsets(hyper)


def _members(model: Any, hyper: Any, shared: Sites, bills: jax.Array, batch: Any) -> Conditional:
    """All members given the bills' weights; vmap axes MEMBERS."""
    num_members, size = shared[model.votes.members].first.shape
    prior = _precision(model, hyper, shared) * jnp.eye(size)
    offset = jnp.repeat(_offsets(model, hyper, num_members)[:, None], len(bills), 1)
    return Conditional(jnp.zeros(size), prior, bills, _pairs(bills), _signs(batch).T, offset)


def _bills(model: Any, hyper: Any, shared: Sites, batch: Any) -> Conditional:
    """All bills given the global sites; vmap axes BILLS."""
    text, d = model.votes.prior(hyper, shared, batch), shared[model.votes.members].first
    offset = _offsets(model, hyper, len(d))
    return Conditional(text.first, -2 * text.second[0], d, _pairs(d), _signs(batch), offset)


def _infer_bills(model, hyper, shared, batch, options, summary):
    """Statistics of the bills' weights at their fixed point."""
    start = obj.start_local(model, hyper, batch, summary)
    part = obj.local_part(model, hyper, shared, batch, start, options, summary)
    return part.stats[model.votes.rows]


# rows="plug_in" and rows="gaussian" ---------------------------------------------------------------


def _truncated(x: jax.Array, here: Expansion) -> Pair:
    """E s and E ss' of the normal approximation about x, each coordinate truncated at zero.

    A coordinate given the others is a positive normal with variance v <= 1 / p. Truncation is
    counted as an observation with precision 1 / v - p: far from zero this is the normal, and for
    K = 1 the moments are exact.
    """
    p = jnp.diagonal(here.curvature)
    found = pos.moments(here.gradient + p * x, p)
    scale = jnp.sqrt(jnp.maximum(found.variance, jnp.finfo(p.dtype).tiny))
    outer, one = jnp.outer(scale, scale), 1 + 10 * len(p) * jnp.finfo(p.dtype).eps
    unit = jnp.where(jnp.eye(len(p), dtype=bool), one, outer * here.curvature)
    return Pair(found.first, outer * jnp.linalg.inv(unit) + jnp.outer(found.first, found.first))


@partial(jax.jit, static_argnames=("model", "rows", "summary"))
def _yea(model, hyper, part, batch, options, rows, summary):
    """(bills, members) probabilities. summary "mean": bills have their mean-field distribution."""
    if summary == "mode" and rows == "gaussian":
        summary = "log_mode"  # the mode in log space is near the mean, also for weights near zero
    s, members = _infer_bills(model, hyper, part.shared, batch, options, summary), part.members
    if summary == "log_mode":
        bills = _bills(model, hyper, part.shared, batch)
        s = jax.vmap(_truncated)(s.first, jax.vmap(_expand, (BILLS, 0))(bills, s.first))
    mean, offset = s.first @ members.first.T, model.votes.offsets(hyper)
    if rows == "plug_in":
        return ndtr(mean + offset)
    square = jnp.einsum("jkl,ikl->ji", s.second, members.second)
    return ndtr((mean + offset) / jnp.sqrt(1 + jnp.maximum(square - mean**2, 0)))


# rows="nested" ------------------------------------------------------------------------------------

MAX_STEPS = 40  # of Newton's method
TOLERANCE = 1e-4  # stop when no search expects to gain more nats


def _together(
    member: Conditional, bill: Conditional, sign: jax.Array, offset: jax.Array, x: jax.Array
) -> Expansion:
    """log p(d_i, log s_j, B_ij | the rest) at x = (d_i, log s_j)."""
    size = len(x) // 2
    d, s = x[:size], jnp.exp(x[size:])
    of_d, of_s, link = _expand(member, d), _expand(bill, s), _link(sign * (d @ s + offset))
    pull = sign * link.gradient
    slope = of_s.gradient + pull * d
    cross = (link.curvature * jnp.outer(s, d) - pull * jnp.eye(size)) * s
    block_d = of_d.curvature + link.curvature * jnp.outer(s, s)
    block_s = jnp.outer(s, s) * (of_s.curvature + link.curvature * jnp.outer(d, d))
    return Expansion(
        of_d.value + of_s.value + link.value + jnp.sum(x[size:]),
        # + 1 is the Jacobian of s = exp(y)
        jnp.concatenate([of_d.gradient + pull * s, s * slope + 1]),
        jnp.block([[block_d, cross], [cross.T, block_s - jnp.diag(s * slope)]]),
    )


def _climb(at: Any, start: jax.Array) -> Expansion:
    """Expansions at the maxima found from (searches, D) starts, by Levenberg-Marquardt.

    at: (searches, D) -> Expansion. A step that lowers the value or is not finite is rejected, and
    the next one is damped more.
    """

    def improve(carry):
        number, x, here, damping, _ = carry
        scale = jnp.maximum(jnp.abs(jnp.diagonal(here.curvature, axis1=1, axis2=2)), 1e-6)
        ridge = (damping[:, None] * scale)[:, None, :] * jnp.eye(x.shape[1], dtype=x.dtype)
        factor = jnp.linalg.cholesky(here.curvature + ridge)
        step = cho_solve((factor, True), here.gradient[..., None])[..., 0]
        finite = jnp.all(jnp.isfinite(step), 1)
        step = jnp.where(finite[:, None], jnp.clip(step, -2, 2), 0)
        gain = jnp.where(finite, jnp.sum(step * here.gradient, 1), jnp.inf)
        new = at(x + step)
        accept = finite & (new.value >= here.value)  # False for nan

        def chosen(a, b):
            return jnp.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        x, here = jax.tree.map(chosen, (x + step, new), (x, here))
        damping = jnp.where(accept, damping / 10, jnp.maximum(10 * damping, 1e-3))
        return number + 1, x, here, jnp.clip(damping, 0, 1e6), gain

    zeros = jnp.zeros(len(start), start.dtype)
    return jax.lax.while_loop(
        lambda carry: (carry[0] < MAX_STEPS) & jnp.any(carry[4] > TOLERANCE),
        improve,
        (0, start, at(start), zeros, zeros + jnp.inf),
    )[2]


@partial(jax.jit, static_argnames=("model",))
def _odds(model, hyper, part, fitted, batch, options):
    """(bills, members) probabilities from Laplace approximations of p(d_i, s_j, B_ij | D, theta).

    One is made for B_ij = 1 and one for 0, each about its own mode in (d_i, log s_j); the ratio of
    the integrals is the odds (Tierney & Kadane 1986; Rue et al. 2009, 3.2).
    """
    s = _infer_bills(model, hyper, part.shared, batch, options, "log_mode").first
    members = _members(model, hyper, part.shared, part.bills, fitted)
    bills = _bills(model, hyper, part.shared, batch)
    d, offset = part.members.first, bills.offset

    def one(each):
        text, sign, weights = each
        bill = bills._replace(linear=text, sign=sign)
        start = jnp.concatenate([d, jnp.broadcast_to(jnp.log(weights), d.shape)], 1)
        together = jax.vmap(_together, (MEMBERS, None, None, 0, 0))

        def log_integral(vote):
            top = _climb(lambda x: together(members, bill, vote, offset, x), start)
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
    d, members = shared[model.votes.members].first, _members(model, hyper, shared, bills, batch)
    curvature = jax.vmap(_expand, (MEMBERS, 0))(members, d).curvature
    return Pair(d, jnp.linalg.inv(curvature) + d[:, :, None] * d[:, None, :])


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
    if fit.model.votes is None or not isinstance(data, Data) or data.kind != "text_and_votes":
        raise InputError(
            "predict_votes needs a fit of a model of votes, and data made with "
            "pp_models.data.text_and_votes."
        )
    posterior = fit.posterior
    if rows is None:
        rows = "gaussian" if posterior.has_spread else "plug_in"
    if rows not in ROWS:
        raise unknown("rows", rows, ROWS)
    if rows == "nested" and (posterior.has_density or posterior.has_chains):
        raise InputError(
            f"rows='nested' expands about modes, and {fit.engine} does not find any: "
            "use rows='gaussian'."
        )
    expands = rows == "nested" or (rows == "gaussian" and not posterior.has_spread)
    if fit.data is None and expands:
        raise InputError(
            f"rows={rows!r} needs the fitted votes, which this fit was loaded without: "
            "pass data= to inference.load."
        )
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
    s = _infer_bills(model, hyper, shared, text, options, "mode").first
    members = _members(model, hyper, shared, s, fitted)
    members = members._replace(precision=precision * jnp.eye(s.shape[1]))

    def newton(_, d):
        here = jax.vmap(_expand, (MEMBERS, 0))(members, d)
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
        raise InputError(
            "refit_members needs a fit by map of a model of votes, to bills that have text, "
            "with these data."
        )
    check_count("num_local", num_local)
    values = {site: fit.posterior.mean(site) for site in fit.posterior.sites}
    shared, name = _stats(model, values), model.votes.precision
    precision = (
        _precision(model, fit.hyper, shared) if alpha2 is None else positive_number(name, alpha2)
    )
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
