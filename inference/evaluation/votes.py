"""Votes on bills, from their text and what votes on them are known (H 3.3, H 5.2).

    p(B_ij | D) = sum_m w_m int p(d2_i, s_j | D, theta_m) p(B_ij | d2_i, s_j)                                                        H(13)

over the points m of a grid; a point estimate and a distribution are one point, draws are points with equal weights. The words d1 and, where a bill's
weights s_j are inferred, the other members are held at their values there. `rows` says what is made of the integral:

| rows       | the probability of yea                                                                                                         |
|------------|--------------------------------------------------------------------------------------------------------------------------------|
| "plug_in"  | Phi(d2_i's_j + offset_i) at the values of d2_i and the mode of s_j: H's choice                                                   |
| "gaussian" | Phi((E d2_i's_j + offset_i) / sqrt(1 + Var d2_i's_j)) with the factors of H(10) and H(11), s_j's cut off at zero                    |
| "nested"   | the second Laplace approximation, INLA's: see `_odds`                                                                           |

By default a point estimate plugs itself in, which on the House's missing votes is better calibrated than the spread that Laplace guesses for it
(docs/experiments.md), and everything else, which has a spread of its own, is "gaussian". In cases small enough to integrate (test_votes.py: a
dozen votes) "nested" is nearest, at the cost of a Newton search of 2 K numbers for each vote; of the other two now one and now the other is.

Where a vote is known, what is predicted is another vote of that member on that bill.
"""

import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr

from inference.core import objective as obj
from pp_models import families as fam
from pp_models.data.types import Data
from pp_models.elimination.inner import inner
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError, unknown
from pp_models.families import Pair
from pp_models.families import positive_normal as pos
from pp_models.model import Sites, check_count, positive_number
from pp_models.models import _latent_gaussian as lg
from pp_models.models import lg_nmf_votes

ROWS = ("gaussian", "plug_in", "nested")


class Part(NamedTuple):
    """What is known at one point of the grid."""

    weight: float
    shared: Sites  # statistics of the global sites, by which bills are inferred
    members: Pair  # E d2_i and E d2_i d2_i'
    bills: Any  # (bills, K) s of the bills that were fitted, where rows="nested" asks for them


# One row given the rows it meets ----------------------------------------------------------------------------------------------------------


class Conditional(NamedTuple):
    """log p(x | the rest), up to a constant: linear'x - x'precision x / 2 + sum_n log Phi(sign_n (partners_n'x + offset_n)).

    x is a member's d2_i, whose partners are the bills it voted on (H 11), or a bill's s_j, whose partners are the members (H 10) and whose text is
    in the linear and the quadratic part. A sign of 0: no vote.
    """

    linear: jax.Array  # (K,)
    precision: jax.Array  # (K, K)
    partners: jax.Array  # (N, K)
    pairs: (
        jax.Array
    )  # (N, K K): their outer products, so that curvatures of many x are one matrix product
    sign: jax.Array  # (N,)
    offset: jax.Array  # (N,)


MEMBERS = Conditional(
    None, None, None, None, 0, 0
)  # axes of a batch of members, which meet the same bills
BILLS = Conditional(0, None, None, None, 0, None)  # and of bills, which meet the same members


def _link(t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log Phi(t), its derivative and minus its second derivative, which lies between 0 and 1."""
    value = log_ndtr(t)
    slope = jnp.exp(-0.5 * t**2 - 0.5 * jnp.log(2 * jnp.pi) - value)
    return value, slope, jnp.clip(slope * (slope + t), 0, 1)


def _expand(rest: Conditional, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The log density at x, its gradient, and minus its Hessian."""
    value, slope, bend = _link(rest.sign * (rest.partners @ x + rest.offset))
    seen = rest.sign != 0
    pulled = rest.precision @ x
    height = rest.linear @ x - 0.5 * x @ pulled + jnp.sum(jnp.where(seen, value, 0))
    curvature = rest.precision + (jnp.where(seen, bend, 0) @ rest.pairs).reshape(len(x), len(x))
    return height, rest.linear - pulled + (rest.sign * slope) @ rest.partners, curvature


def _pairs(x: jax.Array) -> jax.Array:
    return (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)


def _signs(batch: Any) -> jax.Array:
    """(bills, members): 1 yea, -1 nay, 0 not known."""
    cast, seen = lg_nmf_votes.table(batch)
    return jnp.where(seen & (batch.mask[:, None] > 0), jnp.where(cast > 0, 1.0, -1.0), 0.0)


def _offsets(hyper: Any, num_members: int) -> jax.Array:
    return jnp.zeros(num_members) + lg_nmf_votes.offsets(hyper)


def _members(hyper: Any, shared: Sites, bills: jax.Array, batch: Any) -> Conditional:
    """Every member given the bills, axes as in MEMBERS."""
    num_members, size = shared["d2"].first.shape
    alpha2 = lg.precision(hyper, shared, "alpha2").second
    offset = jnp.broadcast_to(_offsets(hyper, num_members)[:, None], (num_members, len(bills)))
    return Conditional(
        jnp.zeros(size), alpha2 * jnp.eye(size), bills, _pairs(bills), _signs(batch).T, offset
    )


def _bills(hyper: Any, shared: Sites, batch: Any) -> Conditional:
    """Every bill given words and members, axes as in BILLS."""
    d1, d2 = shared["d1"], shared["d2"].first
    size = d2.shape[1]
    alpha1 = lg.precision(hyper, shared, "alpha1").second
    text = jnp.zeros((batch.num_rows, size))
    if batch.num_columns:
        text = jax.grad(lambda s: inner(s, d1.first.T, batch.entries))(text)
    return Conditional(
        text,
        alpha1 * jnp.eye(size) + jnp.sum(d1.second, 0),
        d2,
        _pairs(d2),
        _signs(batch),
        _offsets(hyper, len(d2)),
    )


# Rows integrated ----------------------------------------------------------------------------------------------------------------------------


def _cut_off(x: jax.Array, gradient: jax.Array, precision: jax.Array) -> Pair:
    """E s and E ss' of a bill: the normal about x, each coordinate cut off at zero.

    A coordinate given the others is a positive normal, of variance v at most 1 / p. Cutting it off counts as an observation with the precision
    1 / v - p, so that far from zero this is the normal, and for K = 1 its moments are exact.
    """
    p = jnp.diagonal(precision)
    found = pos.moments(gradient + p * x, p)
    scale = jnp.sqrt(jnp.maximum(found.variance, jnp.finfo(p.dtype).tiny))
    coupled = scale[:, None] * precision * scale[None, :]
    unit = (
        coupled
        - jnp.diag(jnp.diagonal(coupled))
        + (1 + 10 * len(p) * jnp.finfo(p.dtype).eps) * jnp.eye(len(p), dtype=p.dtype)
    )
    covariance = scale[:, None] * jnp.linalg.inv(unit) * scale[None, :]
    return Pair(found.first, covariance + found.first[:, None] * found.first[None, :])


def _probability(hyper: Any, members: Pair, bills: Pair) -> jax.Array:
    """Phi((E d2's + offset) / sqrt(1 + Var d2's)) of independent rows."""
    mean = bills.first @ members.first.T
    square = jnp.einsum("jkl,ikl->ji", bills.second, members.second)
    return ndtr(
        (mean + lg_nmf_votes.offsets(hyper)) / jnp.sqrt(1 + jnp.maximum(square - mean**2, 0))
    )


@partial(jax.jit, static_argnames=("model", "rows", "summary"))
def _yea(model, hyper, part, batch, options, rows, summary):
    """Probabilities by all but "nested". summary "mean": bills have the distribution that the mean-field engines give them."""
    if summary != "mean":
        summary = (
            "mode" if rows == "plug_in" else "log_mode"
        )  # in log space a mode is near the mean, also of coordinates near zero
    s = obj.local_part(
        model,
        hyper,
        part.shared,
        batch,
        obj.start_local(model, hyper, batch, summary),
        options,
        summary,
    ).stats["s"]
    if rows == "plug_in":
        return ndtr(s.first @ part.members.first.T + lg_nmf_votes.offsets(hyper))
    if summary == "log_mode":
        _, gradient, precision = jax.vmap(_expand, (BILLS, 0))(
            _bills(hyper, part.shared, batch), s.first
        )
        s = jax.vmap(_cut_off)(s.first, gradient, precision)
    return _probability(hyper, part.members, s)


# The nested approximation ---------------------------------------------------------------------------------------------------------------------

STEPS = 40  # of Newton's method, at most
REST = 1e-4  # it rests when no vote's search expects to gain more nats


def _together(
    member: Conditional, bill: Conditional, sign: jax.Array, offset: jax.Array, x: jax.Array
) -> tuple[jax.Array, ...]:
    """log p(d2_i, log s_j, B_ij | the rest) at x = (d2_i, log s_j), its gradient, and minus its Hessian."""
    size = len(x) // 2
    d, s = x[:size], jnp.exp(x[size:])
    (height_d, slope_d, bend_d), (height_s, slope_s, bend_s) = _expand(member, d), _expand(bill, s)
    value, slope, bend = _link(sign * (d @ s + offset))
    pull = sign * slope
    slope_s = slope_s + pull * d
    cross = (bend * s[:, None] * d[None, :] - pull * jnp.eye(size)) * s[None, :]
    bend_y = s[:, None] * (bend_s + bend * d[:, None] * d[None, :]) * s[None, :] - jnp.diag(
        s * slope_s
    )
    minus_hessian = jnp.block([[bend_d + bend * s[:, None] * s[None, :], cross], [cross.T, bend_y]])
    gradient = jnp.concatenate(
        [slope_d + pull * s, s * slope_s + 1]
    )  # the 1 is the Jacobian of s = exp(y)
    return height_d + height_s + value + jnp.sum(x[size:]), gradient, minus_hessian


class Search(NamedTuple):
    """Of Newton's method for each of some votes: where it is, what it knows there, how much it is held back, and what it expects to gain."""

    x: jax.Array
    height: jax.Array
    gradient: jax.Array
    curvature: jax.Array
    damping: jax.Array
    gain: jax.Array


def _climb(at: Any, start: jax.Array) -> Search:
    """Levenberg and Marquardt's: a step that does not rise, or that has no top to go to, is not taken and the next one is shorter."""

    def improve(carry):
        number, now = carry
        scale = jnp.maximum(jnp.abs(jnp.diagonal(now.curvature, axis1=1, axis2=2)), 1e-6)
        held = now.curvature + (now.damping[:, None] * scale)[:, None, :] * jnp.eye(
            start.shape[1], dtype=start.dtype
        )
        factor = jnp.linalg.cholesky(held)
        step = jax.scipy.linalg.cho_solve((factor, True), now.gradient[..., None])[..., 0]
        sound = jnp.all(jnp.isfinite(step), 1)
        step = jnp.where(sound[:, None], jnp.clip(step, -2, 2), 0)
        new = at(now.x + step)
        rises = sound & (new[0] >= now.height)  # never for nan
        chosen = [
            jnp.where(jnp.reshape(rises, (-1,) + (1,) * (a.ndim - 1)), a, b)
            for a, b in zip((now.x + step, *new), now[:4], strict=True)
        ]
        gain = jnp.where(sound, jnp.sum(step * now.gradient, 1), jnp.inf)
        damping = jnp.clip(
            jnp.where(rises, now.damping / 10, jnp.maximum(10 * now.damping, 1e-3)), 0, 1e6
        )
        return number + 1, Search(*chosen, damping, gain)

    nothing = jnp.zeros(len(start), start.dtype)
    height, gradient, curvature = at(start)
    begin = Search(start, height, gradient, curvature, nothing, nothing + jnp.inf)
    return jax.lax.while_loop(
        lambda carry: (carry[0] < STEPS) & jnp.any(carry[1].gain > REST), improve, (0, begin)
    )[1]


def _log_integral(found: Search) -> jax.Array:
    """Laplace's, up to a constant. A curvature that is not positive, as rounding may leave it, counts as little."""
    curvature = jnp.linalg.eigvalsh(found.curvature)
    return found.height - 0.5 * jnp.sum(jnp.log(jnp.maximum(curvature, 1e-6)), 1)


@partial(jax.jit, static_argnames=("model",))
def _odds(model, hyper, part, fitted, batch, options):
    """Probabilities by a Laplace approximation of p(d2_i, s_j, B_ij | D, theta) for B_ij = 1 and another one for 0, others held at their values.

    Each is expanded about its own mode in (d2_i, log s_j); the integrals' ratio is the odds (Tierney & Kadane 1986; Rue et al. 2009, 3.2). All
    members of a bill are searched for side by side.
    """
    start = obj.start_local(model, hyper, batch, "log_mode")
    s = (
        obj.local_part(model, hyper, part.shared, batch, start, options, "log_mode")
        .stats["s"]
        .first
    )
    members, bills = (
        _members(hyper, part.shared, part.bills, fitted),
        _bills(hyper, part.shared, batch),
    )
    offset, tastes = _offsets(hyper, len(part.members.first)), part.members.first

    def one(each):
        text, sign, weights = each
        bill = bills._replace(linear=text, sign=sign)
        begin = jnp.concatenate([tastes, jnp.broadcast_to(jnp.log(weights), tastes.shape)], 1)

        def integral(vote):
            at = jax.vmap(lambda member, o, x: _together(member, bill, vote, o, x), (MEMBERS, 0, 0))
            return _log_integral(_climb(lambda x: at(members, offset, x), begin))

        yea, nay = jax.vmap(integral)(jnp.array([1.0, -1.0]))
        return jax.nn.sigmoid(yea - nay)

    return jax.lax.map(one, (bills.linear, bills.sign, s))


# What a fit knows -------------------------------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("model",))
def _tastes(model, hyper, shared, bills, batch):
    """E d2 and E d2 d2' of the normals about a point estimate (H 11)."""
    d2 = shared["d2"].first
    precision = jax.vmap(_expand, (MEMBERS, 0))(_members(hyper, shared, bills, batch), d2)[2]
    return Pair(d2, jnp.linalg.inv(precision) + d2[:, :, None] * d2[:, None, :])


def _at(fit: Any, values: dict[str, Any]) -> Sites:
    return {
        site: fit.model.families[site].stats(jnp.asarray(values[site], float))
        for site in fit.model.shared
    }


def _point_part(fit: Any, rows: str) -> Part:
    problem, values = fit.problem, {site: fit.posterior.mean(site) for site in fit.posterior.sites}
    shared, bills = _at(fit, values), jnp.asarray(values["s"], float)
    if rows != "gaussian":
        return Part(1.0, shared, shared["d2"], bills)
    batch = problem.data.pack(np.arange(problem.data.num_rows))
    return Part(1.0, shared, _tastes(problem.model, problem.hyper, shared, bills, batch), bills)


def _grid_part(fit: Any, m: int) -> Part:
    values, natural = (
        fit.posterior.values(m),
        jax.tree.map(jnp.asarray, fit.posterior.natural[m]["d2"]),
    )
    return Part(
        float(fit.posterior.weights[m]),
        _at(fit, values),
        fam.normal.mean(natural),
        jnp.asarray(values["s"], float),
    )


def _parts(fit: Any, num_draws: int, rows: str) -> tuple[list[Part], str]:
    """The points of (13), and the summary that stands for bills there."""
    posterior, families, sites = fit.posterior, fit.model.families, fit.model.shared
    if posterior.kind == "variational":
        shared = {
            site: families[site].mean(jax.tree.map(jnp.asarray, posterior.natural(site)))
            for site in sites
        }
        return [Part(1.0, shared, shared["d2"], None)], "mean"
    if posterior.kind == "point":
        return [_point_part(fit, rows)], "mode"
    if posterior.kind == "mixture":
        return [_grid_part(fit, m) for m in range(len(posterior.weights))], "mode"
    draws = posterior.sample(jax.random.key(0), num_draws)
    drawn = [_at(fit, {site: x[i] for site, x in draws.items()}) for i in range(num_draws)]
    return [Part(1 / num_draws, shared, shared["d2"], None) for shared in drawn], "mean"


def _check(fit: Any, data: Any, rows: str | None) -> str:
    """How rows are integrated out, once everything was found to be in order."""
    if (
        fit.model.name != "lg_nmf_votes"
        or not isinstance(data, Data)
        or data.kind != "text_and_votes"
    ):
        raise InputError(
            "predict_votes needs a fit of lg_nmf_votes and data made with pp_models.data.text_and_votes."
        )
    kind = fit.posterior.kind
    if rows is None:
        rows = "plug_in" if kind == "point" else "gaussian"
    if rows not in ROWS:
        raise unknown("rows", rows, ROWS)
    if rows == "nested" and kind not in ("point", "mixture"):
        raise InputError(
            f"rows='nested' expands about modes, which map, laplace and inla find and {fit.engine} does not: use rows='gaussian'."
        )
    if fit.data is None and (rows == "nested" or (rows == "gaussian" and kind == "point")):
        raise InputError(
            f"rows={rows!r} needs the votes that were fitted, which this fit was loaded without: pass data= to inference.load."
        )
    members = len(fit.posterior.mean("d2"))
    if (data.num_columns, data.num_members) != (fit.provenance["columns"], members):
        raise InputError(
            f"The bills have {data.num_columns} words and {data.num_members} members, but the model was fitted to "
            f"{fit.provenance['columns']} and {members}: use the same vocabulary and members."
        )
    return rows


def predict_votes(
    fit: Any, data: Data, rows: str | None = None, num_draws: int = 50, num_local: int = 200
) -> np.ndarray:
    """(bills, members) probabilities of yea for the bills of `data`, whose known votes, if any, are used. Missing ones are nan there.

    rows: how members and bills are integrated out, "gaussian", "plug_in" or "nested", and what is the default; see the module. num_draws: of a
    Markov chain's.
    num_local: iterations for the bills' weights, at most.
    """
    rows = _check(fit, data, rows)
    check_count("num_draws", num_draws)
    check_count("num_local", num_local)
    problem, batch, options = fit.problem, data.pack(), RowOptions(num_local, 1e-4)
    known = problem.model, problem.hyper
    parts, summary = _parts(fit, num_draws, rows)
    if rows == "nested":
        fitted = problem.data.pack(np.arange(problem.data.num_rows))
        return np.asarray(
            sum(part.weight * _odds(*known, part, fitted, batch, options) for part in parts)
        )
    return np.asarray(
        sum(part.weight * _yea(*known, part, batch, options, rows, summary) for part in parts)
    )


# Members judged by what bills say -----------------------------------------------------------------------------------------------------------------

NEWTON = 12  # steps from zero, where all of a member's votes pull alike; the density is log-concave, and the last steps change nothing


@partial(jax.jit, static_argnames=("model",))
def _refitted(model, hyper, shared, alpha2, text, fitted, options):
    """(s of the bills from their text alone, d2 at its mode given these)."""
    s = (
        obj.local_part(
            model, hyper, shared, text, obj.start_local(model, hyper, text, "mode"), options, "mode"
        )
        .stats["s"]
        .first
    )
    members = _members(hyper, shared, s, fitted)._replace(precision=alpha2 * jnp.eye(s.shape[1]))

    def newton(_, d2):
        _, gradient, precision = jax.vmap(_expand, (MEMBERS, 0))(members, d2)
        return d2 + jnp.linalg.solve(precision, gradient[..., None])[..., 0]

    return s, jax.lax.fori_loop(0, NEWTON, newton, jnp.zeros_like(shared["d2"].first))


def refit_members(fit: Any, alpha2: float | None = None, num_local: int = 200) -> Any:
    """A copy of a fit by map in which bills have the weights of their text alone, and members the tastes that explain their votes by those.

    The weights of bills that were fitted have seen the votes, those of new bills have not; tastes fitted to the former are too sure of the latter.
    alpha2: the tastes' precision, by default the fit's; it is relative to the text's s and so is chosen anew, on bills that were held out.
    """
    if (
        fit.model.name != "lg_nmf_votes"
        or fit.posterior.kind != "point"
        or fit.data is None
        or not fit.data.num_columns
    ):
        raise InputError(
            "refit_members needs a fit of lg_nmf_votes by map to bills that have text, with these data."
        )
    check_count("num_local", num_local)
    problem, data = fit.problem, fit.data
    values = {site: fit.posterior.mean(site) for site in fit.posterior.sites}
    shared = _at(fit, values)
    precision = (
        lg.precision(fit.hyper, shared, "alpha2").second
        if alpha2 is None
        else positive_number("alpha2", alpha2)
    )
    fitted = data.pack(np.arange(data.num_rows))
    text = fitted.replace(votes=fitted.votes.emptied())
    known = problem.model, problem.hyper
    s, d2 = _refitted(
        *known, shared, jnp.asarray(precision, float), text, fitted, RowOptions(num_local, 1e-4)
    )
    changed = {"s": s, "d2": d2} | (
        {"alpha2": np.reshape(precision, (1,))} if "alpha2" in values else {}
    )
    new = copy.copy(fit)
    new.posterior = copy.copy(fit.posterior)
    new.posterior.values = values | {
        site: np.asarray(x, values[site].dtype) for site, x in changed.items()
    }
    if "alpha2" not in values:
        new.problem = problem._replace(
            hyper=problem.hyper._replace(alpha2=jnp.asarray(precision, float))
        )
    return new
