r"""The normal distribution restricted to positive numbers, and rows of coupled ones.

The density of one is $\exp(b x - p x^2 / 2 - \log Z)$, $x > 0$. With $z = b / \sqrt p$ and
$r = \varphi(z) / \Phi(z)$,

$$\log Z = \tfrac12 \log(2 \pi / p) + \tfrac12 z^2 + \log \Phi(z), \qquad
E x = (z + r) / \sqrt p, \qquad E x^2 = (1 + z (z + r)) / p.$$

For $z$ far below 0 all three are differences of nearly equal numbers. There, with $y = -z$, the
continued fraction of Mills' ratio, $r = y + 1/(y + 2/(y + 3/(y + \dots)))$, gives $r - y$ and
$1 - y (r - y)$ without a subtraction.

A row of several has density $\exp(h^\top x - x^\top P x / 2)$ on the positive orthant, whose
normaliser has no closed form. `settle` finds the nearest independent coordinates, or the mode, by
coordinate ascent. The density is log-concave, so that there is one optimum.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import ndtr, ndtri
from numpyro.distributions import constraints

from pp_models.families.base import until_accepted

TAIL = -3.0  # z below which the continued fraction is used
TERMS = {4: 16, 8: 40}  # its terms, by the bytes of a number, for full precision at TAIL
ROWS = 256  # rows settled together, in cache
SWEEPS = 3000  # the most sweeps over the coordinates
GROUP = 6  # coordinates whose coupling to the others is computed as one matrix product


class Moments(NamedTuple):
    """Moments of one positive normal. The difference of the first two would round the variance."""

    log_z: jax.Array  # the log normaliser
    first: jax.Array  # E x
    second: jax.Array  # E x^2
    variance: jax.Array


def moments(b: jax.Array, p: jax.Array) -> Moments:
    """Element by element."""
    root = jnp.sqrt(p)
    z = b / root
    tail = z < TAIL
    y = jnp.where(tail, -z, -TAIL)
    below = y
    for term in range(TERMS[z.dtype.itemsize], 2, -1):
        below = y + term / below
    rest = 1 / (y + 2 / below)  # r - y
    near = jnp.where(tail, 0.0, z)
    mass = ndtr(near)
    ratio = jnp.exp(-0.5 * near**2) / (mass * jnp.sqrt(2 * jnp.pi))
    first = jnp.where(tail, rest, near + ratio)
    second = jnp.where(tail, 2 * rest / below, 1 + near * first)
    log_z_near = 0.5 * (near**2 + jnp.log(2 * jnp.pi)) + jnp.log(mass)
    log_z = jnp.where(tail, -jnp.log(y + rest), log_z_near)
    variance = jnp.where(tail, rest * (2 / below - rest), 1 - ratio * first)
    return Moments(log_z - jnp.log(root), first / root, second / p, jnp.maximum(variance, 0) / p)


@jax.custom_jvp
def _differentiable(x: jax.Array, b: jax.Array, p: jax.Array) -> jax.Array:
    """The draw x, with derivatives with respect to b and p."""
    return x


@_differentiable.defjvp
def _differentiable_jvp(primals, tangents):
    """The draw keeps its quantile: Phi(w) / Phi(z) is constant, with w = z - x sqrt(p)."""
    x, b, p = primals
    _, db, dp = tangents
    root, one = jnp.sqrt(p), jnp.ones_like(p)
    z, dz = b / root, db / root - 0.5 * b / root * dp / p
    mills_ratios = jnp.exp(moments(z - x * root, one).log_z - moments(z, one).log_z)
    return x, (1 - mills_ratios) * dz / root - 0.5 * x * dp / p


def draw(key: jax.Array, b: jax.Array, p: jax.Array) -> jax.Array:
    """One draw of each element, differentiable in b and p."""
    return _differentiable(_draw(key, lax.stop_gradient(b), lax.stop_gradient(p)), b, p)


def _draw(key: jax.Array, b: jax.Array, p: jax.Array) -> jax.Array:
    """By inversion; in the tail by rejection from an exponential (Robert 1995)."""
    root = jnp.sqrt(p)
    z = b / root
    uniform_key, loop_key = jax.random.split(key)
    tail = z < TAIL
    near, y = jnp.where(tail, 0.0, z), jnp.where(tail, -z, -TAIL)
    tiny = jnp.finfo(z.dtype).tiny
    uniform = jax.random.uniform(uniform_key, z.shape, z.dtype, minval=tiny)
    inverted = near - ndtri(jnp.maximum(uniform * ndtr(near), tiny))
    rate = 0.5 * y * (1 + jnp.sqrt(1 + 4 / y**2))

    def propose(step_key, uniform_key):
        step = jax.random.exponential(step_key, z.shape, z.dtype) / rate
        log_uniform = -jax.random.exponential(uniform_key, z.shape, z.dtype)
        return step, log_uniform < -0.5 * (y + step - rate) ** 2

    from_tail = until_accepted(loop_key, 2, propose, jnp.zeros_like(z), ~tail)
    return jnp.maximum(jnp.where(tail, from_tail, inverted) / root, tiny)


def mode(b: jax.Array, p: jax.Array) -> jax.Array:
    """The mode of the density of x."""
    return jnp.maximum(b, 0) / p


def log_mode(b: jax.Array, p: jax.Array) -> jax.Array:
    """The mode of the density of log x: it maximises log x + b x - p x^2 / 2."""
    root = jnp.sqrt(b**2 + 4 * p)
    return jnp.where(b > 0, (b + root) / (2 * p), 2 / (root - jnp.minimum(b, 0)))


# Rows of coupled coordinates ---------------------------------------------------------------------
# h is (K, rows) and P (K, K, rows), or (K, K, 1) where all rows share it: rows come last.


def _by_blocks(function: Any, first: jax.Array, second: jax.Array, start: jax.Array) -> jax.Array:
    """function(h, P, x), with rows last, for ROWS rows at a time. The arrays have rows first."""
    num_rows, size = first.shape
    if num_rows == 0:
        return first
    shared = len(second) == 1
    block = min(ROWS, num_rows)
    num_blocks = -(-num_rows // block)

    def split(x):
        padding = jnp.broadcast_to(x[:1], (num_blocks * block - num_rows, *x.shape[1:]))
        return jnp.concatenate([x, padding]).reshape(num_blocks, block, *x.shape[1:])

    def one(parts):
        h, P, x = parts
        return function(h.T, jnp.moveaxis(second if shared else P, 0, 2), x.T).T

    parts = (split(first), None if shared else split(second), split(start))
    if num_blocks == 1:
        return one(jax.tree.map(lambda x: x[0], parts))
    return lax.map(one, parts).reshape(-1, size)[:num_rows]


def _conditional(h: jax.Array, P: jax.Array, x: jax.Array, k: Any) -> tuple[jax.Array, jax.Array]:
    """b and p of coordinate k given the others."""
    row = lax.dynamic_index_in_dim(P, k, keepdims=False)  # (K, rows or 1)
    p = lax.dynamic_index_in_dim(row, k, keepdims=False)
    here = lax.dynamic_index_in_dim(x, k, keepdims=False)
    b = lax.dynamic_index_in_dim(h, k, keepdims=False) - jnp.sum(row * x, 0) + p * here
    return b, jnp.broadcast_to(p, here.shape)


def _group(update, h: jax.Array, P: jax.Array, x: jax.Array, first, size: int) -> jax.Array:
    """Set coordinates `first` to `first + size` to update(b, p) in turn, for P of shape (K, K).

    Their coupling to all coordinates is one matrix product. The barrier computes each coordinate
    before the next one begins: fused, XLA would compute the first again for every later one.
    """
    rows = lax.dynamic_slice_in_dim(P, first, size)
    block = lax.dynamic_slice_in_dim(rows, first, size, 1)
    old = lax.dynamic_slice_in_dim(x, first, size)
    b = lax.dynamic_slice_in_dim(h, first, size) - rows @ x
    new: list[jax.Array] = []
    for k in range(size):
        moved = sum((block[k, i] * (new[i] - old[i]) for i in range(k)), jnp.zeros_like(b[k]))
        p = jnp.broadcast_to(block[k, k], b[k].shape)
        new.append(lax.optimization_barrier(update(b[k] - moved + p * old[k], p)))
    return lax.dynamic_update_slice_in_dim(x, jnp.stack(new), first, 0)


def _sweep(update: Any, h: jax.Array, P: jax.Array, x: jax.Array) -> jax.Array:
    """Update every coordinate once: in groups where rows share P, one by one otherwise."""
    if P.shape[2] > 1:

        def one(k, x):
            return x.at[k].set(update(*_conditional(h, P, x, k)))

        return lax.fori_loop(0, len(x), one, x)
    size = min(GROUP, len(x))
    groups, rest = divmod(len(x), size)
    matrix = P[..., 0]
    x = lax.fori_loop(0, groups, lambda i, x: _group(update, h, matrix, x, i * size, size), x)
    return _group(update, h, matrix, x, groups * size, rest) if rest else x


def _until_settled(update, most: int, h: jax.Array, P: jax.Array, start: jax.Array) -> jax.Array:
    """Sweep until no coordinate moves by more than a few roundings of itself, its sd, or b."""
    diagonal = jnp.diagonal(P).T  # (K, rows or 1)
    eps = jnp.finfo(h.dtype).eps
    largest = jnp.max(jnp.abs(P), 0)  # (K, rows or 1)

    def sweep(carry):
        number, x, _ = carry
        new = _sweep(update, h, P, x)
        coupling = jnp.sum(largest * jnp.abs(new), 0) / diagonal
        size = jnp.abs(new) + 1 / jnp.sqrt(diagonal) + coupling
        return number + 1, new, jnp.max(jnp.abs(new - x) / size)

    def unsettled(carry):
        return (carry[0] < most) & (carry[2] > 4 * eps)

    begin = (0, start, jnp.asarray(jnp.inf, h.dtype))
    return lax.while_loop(unsettled, sweep, begin)[1]


def alike(first: jax.Array, second: jax.Array) -> jax.Array:
    """The solution for rows whose coordinates are all alike, where a search begins by default."""
    return jnp.maximum(first, 0) / jnp.sum(jnp.abs(second), -1)


def settle(
    first: jax.Array, second: jax.Array, update: Any, start: Any = None, most: int = SWEEPS
) -> jax.Array:
    """(rows, K) coordinates at which each equals update(b, p) given the others.

    h = `first` is (rows, K), P = `second` is (rows or 1, K, K). The search begins at `start`, by
    default `alike`, and takes at most `most` sweeps over the coordinates.
    """
    start = alike(first, second) if start is None else start
    return _by_blocks(partial(_until_settled, update, most), first, second, start)


def refresh(key: jax.Array, first: jax.Array, second: jax.Array, x: jax.Array) -> jax.Array:
    """One Gibbs sweep over the coordinates of every row."""
    h, P = first.T, jnp.moveaxis(second, 0, 2)

    def one(k, x):
        return x.at[k].set(draw(jax.random.fold_in(key, k), *_conditional(h, P, x, k)))

    return lax.fori_loop(0, len(h), one, x.T).T


def _off_diagonal(second: jax.Array) -> jax.Array:
    """P without its diagonal."""
    return second * (1 - jnp.eye(second.shape[-1], dtype=second.dtype))


def diagonal(second: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """(rows, K) diagonals of P."""
    return jnp.broadcast_to(jnp.diagonal(second, axis1=1, axis2=2), shape)


@jax.custom_jvp
def independent(first: jax.Array, second: jax.Array, start: jax.Array) -> jax.Array:
    """(rows, K) b of the independent coordinates nearest to rows with h = `first`, P = `second`.
    Their p is the diagonal of P."""
    mean = settle(first, second, lambda b, p: moments(b, p).first, start)
    return first - _apply(_off_diagonal(second), mean)


def _apply(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return vector @ matrix[0] if len(matrix) == 1 else (matrix @ vector[..., None])[..., 0]


@independent.defjvp
def _independent_jvp(primals, tangents):
    """b = h - R E x(b, p), R = P without its diagonal, differentiated:

    (I + R var) db = dh - dR E x - R dE/dp dp.
    """
    first, second, start = primals
    change, change_second, _ = tangents
    b = independent(first, second, start)
    p = diagonal(second, b.shape)
    found = moments(b, p)
    change_p = diagonal(change_second, b.shape)
    _, by_p = jax.jvp(lambda p: moments(b, p).first, (p,), (change_p,))
    right = change - _apply(_off_diagonal(change_second), found.first)
    right = right - _apply(_off_diagonal(second), by_p)
    matrix = jnp.eye(b.shape[1]) + _off_diagonal(second) * found.variance[:, None, :]
    return b, jnp.linalg.solve(matrix, right[..., None])[..., 0]


# As a NumPyro distribution -----------------------------------------------------------------------


class PositiveNormal(dist.Distribution):
    """A normal with mean `loc` and sd `scale` before truncation to x > 0. Accurate however far
    below zero `loc` is."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012
    support = constraints.positive
    reparametrized_params = ["loc", "scale"]  # noqa: RUF012 (NumPyro's own convention)

    def __init__(self, loc: Any = 0.0, scale: Any = 1.0, *, validate_args: Any = None) -> None:
        shape = jnp.broadcast_shapes(jnp.shape(loc), jnp.shape(scale))
        self.loc, self.scale = jnp.broadcast_to(loc, shape), jnp.broadcast_to(scale, shape)
        super().__init__(shape, (), validate_args=validate_args)

    @property
    def _coefficients(self) -> tuple[jax.Array, jax.Array]:
        return self.loc / self.scale**2, 1 / self.scale**2

    def sample(self, key, sample_shape=()):
        b, p = self._coefficients
        shape = (*sample_shape, *self.batch_shape)
        return draw(key, jnp.broadcast_to(b, shape), jnp.broadcast_to(p, shape))

    def log_prob(self, value):
        b, p = self._coefficients
        return b * value - 0.5 * p * value**2 - moments(b, p).log_z

    @property
    def mean(self):
        return moments(*self._coefficients).first

    @property
    def variance(self):
        return moments(*self._coefficients).variance
