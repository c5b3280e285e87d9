r"""The mode of all sites given the hyper-parameters, found within one compiled program.

Coordinate ascent as in `_coordinate_ascent`, but on one device, with Newton's curvature for curved
sites and SQUAREM extrapolation (Varadhan & Roland 2008). With `summary` "log_mode", for which see
`laplace`, a sweep ends by scaling the factors of a product against each other (`balanced`). That
may lower the objective of the coordinates, so convergence is judged by whole sweeps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pp_models import families as fam
from pp_models.elimination.row_solver import RowOptions
from pp_models.families import Pair
from pp_models.model import Sites, joint

LEAPS = 100.0  # sweeps that an extrapolation may replace, at most


def balanced(model, hyper, values, volumes) -> Sites:
    r"""Scale the factors of a product against each other, one side by $c_k$, the other by $1/c_k$.

    $$ c_k = \operatorname{argmax}_c \; -\tfrac{1}{2} (A_k c^2 + B_k / c^2) + \lambda_k \log c $$

    $A$ and $B$ are the squares under the priors of the sites that are multiplied and divided;
    $\lambda_k$ is the difference of their `volumes`, site -> (K,).
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
    return {s: x * c if s in up else x / c if s in down else x for s, x in values.items()}


def counted(family, precision, stats, target) -> jax.Array:
    """(K,) effective number of a site's rows: the volume that its scale has.

    Every positive row counts, because its mode is in log space. Of real rows,
    n - precision sum_i Var[x_ik]: the posterior balances E|x_k|^2, of which the mode lacks the
    variance, and a row that the data leave to its prior has no volume.
    """
    rows, size = stats.first.shape
    if family.settles:
        return jnp.full(size, float(rows), stats.first.dtype)
    held = fam.summarise(family, target, "mean")
    spread = jnp.sum(jnp.diagonal(held.second, axis1=1, axis2=2), 0) - jnp.sum(held.first**2, 0)
    return rows - precision * spread


def bending(model, hyper, stats, batch, site):
    """(rows, K, K) Hessian of F in a site's first statistic, from eliminated auxiliaries."""
    part, second = model.marginal.bent or joint, stats[site].second
    slope = jax.grad(lambda x: part(model, hyper, {**stats, site: Pair(x, second)}, batch))
    x = stats[site].first
    columns = jax.lax.map(
        lambda e: jax.jvp(slope, (x,), (jnp.broadcast_to(e, x.shape),))[1],
        jnp.eye(x.shape[1], dtype=x.dtype),
    )
    return jnp.moveaxis(columns, 0, 2)


def row_products(matrices, x):
    return x @ matrices[0] if len(matrices) == 1 else (matrices @ x[..., None])[..., 0]


def block_target(model, hyper, stats, batch, site, newton):
    """F, and a site's natural parameters dF/dt with a share `newton` of the Hessian's bend.

    0 is the step of EM, 1 that of Newton; None leaves the Hessian out.
    """
    height, gradient = jax.value_and_grad(lambda t: joint(model, hyper, {**stats, site: t}, batch))(
        stats[site]
    )
    tied = len(gradient.second) != len(gradient.first)
    if newton is None or tied or site not in model.curved:
        return height, gradient
    bend = newton * bending(model, hyper, stats, batch, site)
    first = gradient.first - row_products(bend, stats[site].first)
    return height, Pair(first, gradient.second + 0.5 * bend)


def sweep_blocks(model, hyper, stats, batch, summary, newton) -> tuple[Sites, Sites, jax.Array]:
    """Update all sites in turn: their statistics, their natural parameters, and F before."""
    stats, found, height = dict(stats), {}, None
    if newton is not None and model.solve_local is not None and not model.curved & model.local:
        # Rows with a common precision converge much faster in their own solver.
        shared, rows = ({s: stats[s] for s in stats if (s in model.local) == b} for b in (0, 1))
        height, one = joint(model, hyper, stats, batch), RowOptions(1, 0.0)
        found = dict(model.solve_local(hyper, shared, batch, rows, one, summary)[0])
    for site, family in model.families.items():
        if site not in found:
            density, found[site] = block_target(model, hyper, stats, batch, site, newton)
            height = density if height is None else height
        stats[site] = fam.summarise(family, found[site], summary, stats[site])
    return stats, found, height


def sweep(model, hyper, values, batch, summary, newton) -> tuple[Sites, jax.Array]:
    """One pass over all sites, then their balance; and the objective before it."""
    families = model.families
    stats = {site: families[site].stats(x) for site, x in values.items()}
    terms = (jnp.sum(fam.log_measure(f, stats[s], summary)) for s, f in families.items())
    measure = sum(terms, jnp.zeros(()))
    stats, found, density = sweep_blocks(model, hyper, stats, batch, summary, newton)
    sides, volumes = model.marginal.balance(hyper) if model.marginal.balance else (), {}
    for site, precision in (item for side in sides for item in side.items()):
        volumes[site] = jnp.zeros(stats[site].first.shape[1])
        if summary == "log_mode":
            volumes[site] = counted(families[site], precision, stats[site], found[site])
    values = {site: families[site].value(t) for site, t in stats.items()}
    return balanced(model, hyper, values, volumes), measure + density


class Ascent(NamedTuple):
    """The state of coordinate ascent. A SQUAREM cycle has three sweeps.

    They start from x0, from x1, and from an extrapolation of both.

    values:       where the next sweep starts
    number:       sweeps so far
    converged:    whether the last cycle gained less than the tolerance
    newton:       1 for Newton's steps; 0 for EM's, for a cycle after one that left finite numbers
    first, second: start of the cycle and end of its second sweep, as coordinates
    heights:      the objective at x0 of the last cycle, at x0 and at x1
    """

    values: Sites
    number: Any
    converged: Any
    newton: Any
    first: Sites
    second: Sites
    heights: Any


def ascend(model, hyper, start, batch, summary, most, tolerance) -> Ascent:
    """Coordinate ascent until a cycle gains less than the tolerance, at most `most` sweeps.

    The extrapolation is kept if its objective is higher.
    """
    positive = {site for site, family in model.families.items() if family.settles}
    logged = positive if summary == "log_mode" else set()
    tiny = jnp.finfo(jnp.result_type(float)).tiny

    def inward(x):
        return {s: jnp.log(jnp.maximum(v, tiny)) if s in logged else v for s, v in x.items()}

    def outward(u):
        out = {s: jnp.exp(v) if s in logged else v for s, v in u.items()}
        return {s: jnp.maximum(v, 0) if s in positive else v for s, v in out.items()}

    def subtract(u, v):
        return {site: u[site] - v[site] for site in u}

    def norm(u):
        return jnp.sqrt(sum(jnp.sum(x**2) for x in u.values()))

    def leap(u0, u1, u2):
        r = subtract(u1, u0)
        v = subtract(subtract(u2, u1), r)
        length = jnp.clip(norm(r) / jnp.maximum(norm(v), tiny), 1.0, LEAPS)
        return outward({s: u0[s] + 2 * length * r[s] + length**2 * v[s] for s in u0})

    def pick(condition, one, other):
        return jax.tree.map(lambda x, y: jnp.where(condition, x, y), one, other)

    def more(now):
        new, height = sweep(model, hyper, now.values, batch, summary, now.newton)
        before, x0, x1 = now.heights
        begins, extrapolates, ends = (now.number % 3 == stage for stage in range(3))
        here, there = inward(now.values), inward(new)
        taken = jnp.isfinite(height) & all_finite(new) & (height >= x1)
        lost = ~jnp.isfinite(x1) | ~all_finite(now.second)
        least = jnp.maximum(tolerance, 4 * jnp.finfo(x0.dtype).eps * jnp.abs(x0))
        converged = ends & (now.newton > 0) & ~lost & (jnp.abs(x0 - before) <= least)
        kept = pick(taken, new, pick(lost, outward(now.first), outward(now.second)))
        values = pick(begins, new, pick(extrapolates, leap(now.first, here, there), kept))
        later = pick(extrapolates, jnp.stack([before, x0, height]), jnp.stack([x0, x0, x1]))
        return Ascent(
            values,
            now.number + 1,
            converged,
            jnp.where(ends, jnp.where(lost, 0.0, 1.0), now.newton),
            pick(begins, here, now.first),
            pick(extrapolates, there, now.second),
            pick(begins, jnp.stack([before, height, x1]), later),
        )

    begin, low = inward(start), jnp.full(3, -jnp.inf, jnp.result_type(float))
    state = Ascent(start, 0, jnp.asarray(False), jnp.ones(()), begin, begin, low)
    return jax.lax.while_loop(
        lambda now: ((now.number < most) & ~now.converged) | (now.number % 3 > 0), more, state
    )


def all_finite(values: Sites) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in values.values()]))
