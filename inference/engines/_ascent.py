"""The mode of all rows given the hyper-parameters: coordinate ascent with Newton's curvature where a site is bent, extrapolated.

In log space, where the mode of a product of factors is looked for (see `laplace`), every factor is also scaled against the others (`balanced`), which
may lower the height that the coordinates climb: what rests is the whole sweep.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pp_models import families as fam
from pp_models.elimination.row_solver import RowOptions
from pp_models.families import Pair
from pp_models.model import Sites, joint


def balanced(model, hyper, values, volumes) -> Sites:
    """Every factor of a product scaled against the other to the top of its line: c_k maximises -(A c^2 + B / c^2) / 2 + lambda_k log c.

    A and B are the priors' squares of the sites to be multiplied and divided by c; lambda_k is the difference of their `volumes`, site -> (K,).
    """
    if model.marginal.balance is None:
        return values
    up, down = model.marginal.balance(hyper)
    a, b = (
        sum(precision * jnp.sum(values[site] ** 2, 0) for site, precision in side.items())
        for side in (up, down)
    )
    volume = sum(volumes[site] for site in up) - sum(volumes[site] for site in down)
    root = jnp.sqrt(volume**2 + 4 * a * b)
    w = jnp.where(volume >= 0, (volume + root) / (2 * a), 2 * b / (root - jnp.minimum(volume, 0)))
    c = jnp.sqrt(jnp.where((a > 0) & (b > 0), w, 1.0))
    return {
        site: x * c if site in up else x / c if site in down else x for site, x in values.items()
    }


def counted(family, precision, stats, target) -> jax.Array:
    """(K,) how many of a site's rows the data hold, the volume in which its scale lives.

    Of positive rows, whose mode is in log space, all. Of real rows n - precision sum_i Var[x_ik]: the posterior balances E|x_k|^2, of which the mode
    lacks the variance, and a row that the data leave to its prior has no volume of its own.
    """
    rows, size = stats.first.shape
    if family.settles:
        return jnp.full(size, float(rows), stats.first.dtype)
    held = fam.summarise(family, target, "mean")
    spread = jnp.sum(jnp.diagonal(held.second, axis1=1, axis2=2), 0) - jnp.sum(held.first**2, 0)
    return rows - precision * spread


def bending(model, hyper, stats, batch, site):
    """(rows, K, K) second derivatives of F with respect to a site's first statistic: what eliminated auxiliaries bend. Rows do not meet."""
    part = model.marginal.bent or joint

    def slope(first):
        return jax.grad(
            lambda x: part(model, hyper, {**stats, site: Pair(x, stats[site].second)}, batch)
        )(first)

    x = stats[site].first
    columns = jax.lax.map(
        lambda e: jax.jvp(slope, (x,), (jnp.broadcast_to(e, x.shape),))[1],
        jnp.eye(x.shape[1], dtype=x.dtype),
    )
    return jnp.moveaxis(columns, 0, 2)


def row_products(matrices, x):
    return x @ matrices[0] if len(matrices) == 1 else (matrices @ x[..., None])[..., 0]


def newton_target(model, hyper, stats, batch, site, bend):
    """F at the statistics, and the site's natural parameters there: dF/dt, with a share `bend` of its curvature's bend: 0 is EM, 1 Newton's step."""
    height, gradient = jax.value_and_grad(lambda t: joint(model, hyper, {**stats, site: t}, batch))(
        stats[site]
    )
    if site not in model.curved or len(gradient.second) != len(gradient.first):
        return height, gradient
    beyond = bend * bending(model, hyper, stats, batch, site)
    return height, Pair(
        gradient.first - row_products(beyond, stats[site].first), gradient.second + 0.5 * beyond
    )


def sweep(model, hyper, values, batch, summary, bend) -> tuple[Sites, jax.Array]:
    """One pass of coordinate ascent over all sites, then their balance; and the objective before it."""
    families = model.families
    stats = {site: families[site].stats(x) for site, x in values.items()}
    sides = model.marginal.balance(hyper) if model.marginal.balance else ()
    weights = {site: precision for side in sides for site, precision in side.items()}
    volumes = {site: jnp.zeros(stats[site].first.shape[1]) for site in weights}
    height = sum(
        (
            jnp.sum(fam.log_measure(family, stats[site], summary))
            for site, family in families.items()
        ),
        jnp.zeros(()),
    )
    solved = model.solve_local is not None and not model.curved & model.local
    if solved:  # rows that share a precision settle much faster; they come first in `families`
        height += joint(model, hyper, stats, batch)
        shared, rows = (
            {site: stats[site] for site in stats if (site in model.local) == local}
            for local in (False, True)
        )
        found = model.solve_local(hyper, shared, batch, rows, RowOptions(1, 0.0), summary)[0]
    for i, (site, family) in enumerate(families.items()):
        if solved and site in model.local:
            target = found[site]
        else:
            density, target = newton_target(model, hyper, stats, batch, site, bend)
            height += density if i == 0 and not solved else 0.0
        if site in weights and summary == "log_mode":
            volumes[site] = counted(family, weights[site], stats[site], target)
        stats[site] = fam.summarise(family, target, summary, stats[site])
    return balanced(
        model, hyper, {site: families[site].value(t) for site, t in stats.items()}, volumes
    ), height


LEAPS = 100.0  # sweeps that an extrapolation may stand for, at most


class Ascent(NamedTuple):
    """Where coordinate ascent is. Sweeps come in threes: from x0, from x1, and from an extrapolation of the two (SQUAREM, Varadhan & Roland 2008).

    values:   to sweep from next
    number:   of sweeps so far
    rested:   whether the last three gained less than the tolerance
    bend:     1 for Newton's steps, 0 for EM's, which take over for three sweeps after one that left what can be computed
    first, second: coordinates of x0 and, of use after the second sweep, where it ended
    heights:  of the objective at x0 of the three before, at x0 and at x1
    """

    values: Sites
    number: Any
    rested: Any
    bend: Any
    first: Sites
    second: Sites
    heights: Any


def ascend(model, hyper, start, batch, summary, most, tolerance) -> Ascent:
    """Coordinate ascent until three sweeps gain less than the tolerance. An extrapolation is taken that lands higher."""
    positive = (
        {site for site, family in model.families.items() if family.settles}
        if summary == "log_mode"
        else set()
    )
    tiny = jnp.finfo(jnp.result_type(float)).tiny

    def inward(x):
        return {
            site: jnp.log(jnp.maximum(v, tiny)) if site in positive else v for site, v in x.items()
        }

    def outward(u):
        out = {site: jnp.exp(v) if site in positive else v for site, v in u.items()}
        return {
            site: jnp.maximum(v, 0) if model.families[site].settles else v
            for site, v in out.items()
        }

    def distance(u, v):
        return jnp.sqrt(sum(jnp.sum((u[site] - v[site]) ** 2) for site in u))

    def leap(u0, u1, u2):
        r = {site: u1[site] - u0[site] for site in u0}
        length = jnp.clip(
            distance(u1, u0) / jnp.maximum(distance(jax.tree.map(jnp.subtract, u2, u1), r), tiny),
            1.0,
            LEAPS,
        )
        return outward(
            {
                site: u0[site] + 2 * length * r[site] + length**2 * (u2[site] - u1[site] - r[site])
                for site in u0
            }
        )

    def pick(condition, one, other):
        return jax.tree.map(lambda x, y: jnp.where(condition, x, y), one, other)

    def more(now):
        new, height = sweep(model, hyper, now.values, batch, summary, now.bend)
        before, x0, x1 = now.heights
        stage = now.number % 3
        here, there = inward(now.values), inward(new)
        far = leap(now.first, here, there)
        taken = jnp.isfinite(height) & all_finite(new) & (height >= x1)
        lost = ~jnp.isfinite(x1) | ~all_finite(now.second)  # back to where the three began
        rested = (
            (stage == 2)
            & (now.bend > 0)
            & ~lost
            & (
                jnp.abs(x0 - before)
                <= jnp.maximum(tolerance, 4 * jnp.finfo(x0.dtype).eps * jnp.abs(x0))
            )
        )
        kept = pick(taken, new, pick(lost, outward(now.first), outward(now.second)))
        values = pick(stage == 0, new, pick(stage == 1, far, kept))
        heights = pick(
            stage == 0,
            jnp.stack([before, height, x1]),
            pick(stage == 1, jnp.stack([before, x0, height]), jnp.stack([x0, x0, x1])),
        )
        bend = jnp.where(stage == 2, jnp.where(lost, 0.0, 1.0), now.bend)
        first = pick(stage == 0, here, now.first)
        return Ascent(
            values,
            now.number + 1,
            rested,
            bend,
            first,
            pick(stage == 1, there, now.second),
            heights,
        )

    begin = inward(start)
    low = jnp.full(3, -jnp.inf, jnp.result_type(float))
    state = Ascent(start, 0, jnp.asarray(False), jnp.ones(()), begin, begin, low)
    return jax.lax.while_loop(
        lambda now: ((now.number < most) & ~now.rested) | (now.number % 3 > 0), more, state
    )


def all_finite(values: Sites) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in values.values()]))
