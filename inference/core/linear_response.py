r"""Linear response: the covariance of a posterior from the curvature of its mean-field bound.

At a maximum of the bound $F(\mu) + H(q)$ the natural parameters are $\eta = \partial F / \partial
\mu$. If F is tilted to $F + \epsilon\, g$, the expected statistics move by $\Sigma\, \partial g /
\partial \mu$ with

$$ \Sigma = -\Big(\frac{\partial^2\, \text{bound}}{\partial \mu^2}\Big)^{-1}
= (V^{-1} - F'')^{-1}, \qquad V = \frac{\partial \mu}{\partial \eta}. $$

Under the posterior itself the expectation of $t$ moves by the covariance of $t$ and $g$. So
$\Sigma$ estimates that covariance (Giordano, Broderick & Jordan 2018), where mean field has $V$,
the covariance under q. Auxiliary variables were eliminated from F at their optimum; their response
is part of $F''$.

$\Sigma b$ is found by conjugate gradients with the preconditioner $V$, for several $b$ at once.
Neither matrix is formed: $V$ and $F''$ are applied by forward differentiation of `Family.mean` and
of the gradient of F. $V^{-1}$ is never applied: the search direction is a combination of vectors
$V r$, and the same combination of the $r$ is its image under $V^{-1}$.

A site that q holds as a point does not respond: widths are those given the point. Along rotations
that leave the data as they are the bound is flat, and rounding would send the search there: every
residual is kept off them (`gauge`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import gauge
from inference.core import objective as obj
from pp_models import families as fam
from pp_models.data.batches import Batch
from pp_models.model import Model, Sites
from pp_models.model.density import joint

TOLERANCE = 1e-3  # of the residual, relative to its start; the error of a variance is its square
MOST_STEPS = 1000


class Place(NamedTuple):
    """Where the bound is expanded: natural parameters and statistics of all sites of all rows."""

    hyper: Any
    natural: Sites
    mean: Sites
    batch: Batch


def double(tree: Any) -> Any:
    """The same in double precision."""

    def cast(x: Any) -> Any:
        x = np.asarray(x)
        return jnp.asarray(x, jnp.float64) if np.issubdtype(x.dtype, np.floating) else x

    return jax.tree.map(cast, tree)


@partial(jax.jit, static_argnames=("model",))
def place_at(model: Model, hyper: Any, natural: Sites, batch: Batch) -> Place:
    return Place(hyper, natural, obj.summarise(model, natural), batch)


def fisher(model: Model, place: Place, change: Sites) -> Sites:
    """V times a change of the natural parameters: the change of the expected statistics."""
    return jax.jvp(partial(obj.summarise, model), (place.natural,), (change,))[1]


def gradient(model: Model, place: Place, mean: Sites) -> Sites:
    """dF/dmu."""
    return jax.grad(lambda stats: joint(model, place.hyper, stats, place.batch))(mean)


def curvature(model: Model, place: Place, change: Sites) -> Sites:
    """F'' times a change of the expected statistics."""
    found = jax.jvp(partial(gradient, model, place), (place.mean,), (change,))[1]
    return without_points(model, found)


def without_points(model: Model, tree: Sites) -> Sites:
    """The same with zeros for the sites that q holds as points."""
    return {
        site: x if model.families[site].has_density else jax.tree.map(jnp.zeros_like, x)
        for site, x in tree.items()
    }


@partial(jax.jit, static_argnames=("model",))
def regressions(model: Model, place: Place, slopes: Sites) -> Sites:
    """Functionals b of the statistics from stacked gradients with respect to the sites' values."""

    def of_site(site: str) -> Any:
        family, natural = model.families[site], place.natural[site]
        return jax.vmap(lambda c: fam.regression(family, natural, c))(slopes[site])

    return {site: of_site(site) for site in model.families}


@partial(jax.jit, static_argnames=("model", "site"))
def unexplained(model: Model, place: Place, site: str, slopes: jax.Array) -> jax.Array:
    """The variances under q that these regressions leave."""
    family, natural = model.families[site], place.natural[site]
    return jax.vmap(lambda c: fam.unexplained(family, natural, c))(slopes)


def bound(model: Model, place: Place) -> jax.Array:
    """F(mu) + H(q)."""
    total = joint(model, place.hyper, place.mean, place.batch)
    for site, natural in place.natural.items():
        term = fam.entropy(model.families[site], natural)
        total += place.batch.sum(term) if site in model.local else jnp.sum(term)
    return total


def inner(one: Sites, other: Sites) -> jax.Array:
    """The sum of products of all numbers."""
    parts = jax.tree.map(lambda a, b: jnp.vdot(a, b), one, other)
    return sum(jax.tree.leaves(parts), jnp.zeros(()))


def add(one: Sites, factor: Any, other: Sites) -> Sites:
    return jax.tree.map(lambda a, b: a + factor * b, one, other)


class Search(NamedTuple):
    """Conjugate gradients for one right-hand side b.

    shift, natural: the solution s, and V^-1 s: the change of the natural parameters
    residual:       b - (V^-1 - F'') s, a change of natural parameters
    direction, image: p, and V^-1 p
    size:           <residual, V residual>; first: its value at the start
    least:          the smallest curvature <p, A p> / <p, V^-1 p> met: at most 0 at no maximum
    length:         of the last step
    """

    shift: Sites
    natural: Sites
    residual: Sites
    direction: Sites
    image: Sites
    size: jax.Array
    first: jax.Array
    least: jax.Array
    length: jax.Array


def begin(model: Model, place: Place, flat: jax.Array, right: Sites) -> Search:
    right = _off_turns(model, place, flat, without_points(model, right))
    direction = fisher(model, place, right)
    size = inner(right, direction)
    zero = jax.tree.map(jnp.zeros_like, right)
    return Search(zero, zero, right, direction, right, size, size, jnp.ones(()), jnp.zeros(()))


def _off_turns(model: Model, place: Place, flat: jax.Array, residual: Sites) -> Sites:
    return gauge.off_turns(model, place.mean, place.natural, flat, residual)


def improve(model: Model, place: Place, flat: jax.Array, tolerance: Any, now: Search) -> Search:
    """One step; nothing once the residual is small or a direction has no positive curvature."""
    bent = curvature(model, place, now.direction)
    image = jax.tree.map(jnp.subtract, now.image, bent)
    along, scale = inner(now.direction, image), inner(now.direction, now.image)
    ratio = along / jnp.where(scale > 0, scale, 1)
    least = jnp.where(_unfinished(now, tolerance), jnp.minimum(now.least, ratio), now.least)
    go = _unfinished(now._replace(least=least), tolerance)
    length = jnp.where(go, now.size / jnp.where(go, along, 1), 0)
    residual = _off_turns(model, place, flat, add(now.residual, -length, image))
    steepest = fisher(model, place, residual)
    size = inner(residual, steepest)
    keep = jnp.where(go, size / jnp.where(go, now.size, 1), 0)

    def turn(old: Sites, new: Sites) -> Sites:
        return jax.tree.map(lambda a, b: jnp.where(go, b + keep * a, a), old, new)

    return Search(
        add(now.shift, length, now.direction),
        add(now.natural, length, now.image),
        residual,
        turn(now.direction, steepest),
        turn(now.image, residual),
        jnp.where(go, size, now.size),
        now.first,
        least,
        length,
    )


def _unfinished(now: Search, tolerance: Any) -> jax.Array:
    return (now.size > tolerance**2 * now.first) & (now.least > 0)


@partial(jax.jit, static_argnames=("model",))
def _start(model, place, flat, rights):
    return jax.vmap(partial(begin, model, place, flat))(rights)


@partial(jax.jit, static_argnames=("model", "steps"))
def _advance(model, place, flat, tolerance, search, steps):
    onward = jax.vmap(partial(improve, model, place, flat, tolerance))
    search = jax.lax.fori_loop(0, steps, lambda i, now: onward(now), search)
    return search, jax.vmap(lambda now: _unfinished(now, tolerance))(search)


class Response(NamedTuple):
    """The solutions for some right-hand sides b, which lie along the first axis.

    shift:     Sigma b, changes of the expected statistics. natural: of the natural parameters
    residual:  relative to b, in the norm of V
    least:     the least curvature met relative to V^-1: 1 minus the largest eigenvalue of F''V that
               was seen. At most 0 if the place is no maximum
    steps:     of the search
    rest:      what is left of b, a change of the natural parameters
    last:      the last direction, as such a change: where `least` is not positive, one along which
               the bound is not concave
    """

    shift: Sites
    natural: Sites
    residual: np.ndarray
    least: np.ndarray
    steps: int
    rest: Sites
    last: Sites

    @property
    def is_maximum(self) -> np.ndarray:
        return self.least > 0


def respond(
    model: Model,
    place: Place,
    rights: Sites,
    tolerance: float = TOLERANCE,
    most: int = MOST_STEPS,
    watch: Callable[[], Any] = tuple,
) -> Response:
    """Solve (V^-1 - F'') s = b for each of the stacked right-hand sides b.

    watch: called between some steps; an exception ends the search
    """
    flat = gauge.flat_inverse(model, place.mean, place.natural)
    search, steps, going = _start(model, place, flat, rights), 0, True
    while going and steps < most:
        watch()
        search, unfinished = _advance(model, place, flat, tolerance, search, 5)
        steps, going = steps + 5, bool(np.any(np.asarray(unfinished)))
    first = np.maximum(np.asarray(search.first), np.finfo(float).tiny)
    residual = np.sqrt(np.maximum(np.asarray(search.size), 0) / first)
    least = np.asarray(search.least)
    shift, natural, rest, last = search.shift, search.natural, search.residual, search.image
    return Response(shift, natural, residual, least, steps, rest, last)


def sensitivities(model: Model, place: Place, shifts: Sites) -> dict[str, np.ndarray]:
    r"""Derivatives of expected functionals with respect to each hyper-parameter.

    With $s = \Sigma b$ of a functional, $dE[g]/dh = s^\top \, \partial^2 F / \partial \mu \,
    \partial h$. Name -> (functionals, ...).
    """
    names = [name for name, x in place.hyper._asdict().items() if hasattr(x, "dtype")]
    found = {}
    for name in names:
        value = getattr(place.hyper, name)
        slopes = _by_hyper(model, place, name, jnp.eye(value.size).reshape(-1, *value.shape))
        flat = jax.tree.map(lambda x: x.reshape(len(x), -1), (shifts, slopes))
        parts = jax.tree.map(lambda a, b: a @ b.T, *flat)
        total = np.asarray(sum(jax.tree.leaves(parts)))
        found[name] = total.reshape(-1, *value.shape)
    return found


@partial(jax.jit, static_argnames=("model", "name"))
def _by_hyper(model, place, name, directions):
    """d/dh of dF/dmu along each direction of one hyper-parameter."""

    def slope(value):
        moved = place._replace(hyper=place.hyper._replace(**{name: value}))
        return gradient(model, moved, place.mean)

    value = getattr(place.hyper, name)
    return jax.vmap(lambda change: jax.jvp(slope, (value,), (change,))[1])(directions)
