"""Conditional densities of single rows of votes: members given bills, and bills given members."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jax.scipy.special import log_ndtr

from inference.core import objective as obj
from pp_models.families import Pair
from pp_models.families import positive_normal as pos
from pp_models.model import Sites


class Conditional(NamedTuple):
    r"""The log density of a member's tastes or a bill's weights x given everything else,

    $$ b^\top x - \tfrac12 x^\top P x
       + \sum_n \log \Phi\big(\mathrm{sign}_n (p_n^\top x + \mathrm{offset}_n)\big) $$

    The partners $p_n$ of a member are the bills (H 11), those of a bill the members (H 10). Text is
    in b and P. pairs: (N, K, K) outer products of the partners, so that the curvatures of many x
    are one matrix product. sign: 1 yea, -1 nay, 0 no vote.
    """

    linear: jax.Array
    precision: jax.Array
    partners: jax.Array
    pairs: jax.Array
    sign: jax.Array
    offset: jax.Array


# vmap axes: members share the bills, bills share the members
MEMBERS = Conditional(None, None, None, None, 0, 0)
BILLS = Conditional(0, None, None, None, 0, None)


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


def expand(rest: Conditional, x: jax.Array) -> Expansion:
    link = _link(rest.sign * (rest.partners @ x + rest.offset))
    seen = rest.sign != 0
    pulled = rest.precision @ x
    return Expansion(
        rest.linear @ x - 0.5 * x @ pulled + jnp.sum(jnp.where(seen, link.value, 0)),
        rest.linear - pulled + (rest.sign * link.gradient) @ rest.partners,
        rest.precision + jnp.tensordot(jnp.where(seen, link.curvature, 0), rest.pairs, 1),
    )


def outer(x: jax.Array) -> jax.Array:
    return x[:, :, None] * x[:, None, :]


def _signs(batch: Any) -> jax.Array:
    """(bills, members): 1 yea, -1 nay, 0 unknown."""
    cast = batch.votes.dense(batch.num_members, fill=jnp.nan)
    seen = ~jnp.isnan(cast) & (batch.mask[:, None] > 0)
    return jnp.where(seen, jnp.where(cast > 0, 1.0, -1.0), 0.0)


def prior_precision(model: Any, hyper: Any, shared: Sites) -> jax.Array:
    """Prior precision of the members' tastes, a site or given."""
    name = model.votes.precision
    return shared[name].second[0] if name in shared else jnp.asarray(getattr(hyper, name))


def members_given(
    model: Any, hyper: Any, shared: Sites, bills: jax.Array, batch: Any
) -> Conditional:
    """All members given the bills' weights; vmap axes MEMBERS."""
    number, size = shared[model.votes.members].first.shape
    prior, pairs = prior_precision(model, hyper, shared) * jnp.eye(size), outer(bills)
    offset = jnp.zeros(number) + model.votes.offsets(hyper)
    return Conditional(jnp.zeros(size), prior, bills, pairs, _signs(batch).T, offset)


def bills_given(model: Any, hyper: Any, shared: Sites, batch: Any) -> Conditional:
    """All bills given the global sites; vmap axes BILLS."""
    text, d = model.votes.prior(hyper, shared, batch), shared[model.votes.members].first
    offset = jnp.zeros(len(d)) + model.votes.offsets(hyper)
    return Conditional(text.first, -2 * text.second[0], d, outer(d), _signs(batch), offset)


def infer_bills(model, hyper, shared, batch, options, summary):
    """Statistics of the bills' weights at their fixed point."""
    start = obj.start_local(model, hyper, batch, summary)
    part = obj.local_part(model, hyper, shared, batch, start, options, summary)
    return part.stats[model.votes.rows]


def truncated(x: jax.Array, here: Expansion) -> Pair:
    """E s and E ss' of the normal approximation about x, each coordinate truncated at zero.

    A coordinate given the others is a positive normal with variance v <= 1 / p. Truncation is
    counted as an observation with precision 1 / v - p: far from zero this is the normal, and for
    K = 1 the moments are exact.
    """
    p = jnp.diagonal(here.curvature)
    found = pos.moments(here.gradient + p * x, p)
    scale = jnp.sqrt(jnp.maximum(found.variance, jnp.finfo(p.dtype).tiny))
    scales, one = jnp.outer(scale, scale), 1 + 10 * len(p) * jnp.finfo(p.dtype).eps
    unit = jnp.where(jnp.eye(len(p), dtype=bool), one, scales * here.curvature)
    return Pair(found.first, scales * jnp.linalg.inv(unit) + jnp.outer(found.first, found.first))


MAX_STEPS = 40  # of Newton's method
TOLERANCE = 1e-4  # stop when no search expects to gain more nats


def together(
    member: Conditional, bill: Conditional, sign: jax.Array, offset: jax.Array, x: jax.Array
) -> Expansion:
    """log p(d_i, log s_j, B_ij | the rest) at x = (d_i, log s_j)."""
    size = len(x) // 2
    d, s = x[:size], jnp.exp(x[size:])
    of_d, of_s, link = expand(member, d), expand(bill, s), _link(sign * (d @ s + offset))
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


def climb(at: Any, start: jax.Array) -> Expansion:
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
