"""The normal distribution restricted to positive numbers, and rows of coupled ones.

    density of one   exp(b x - p x^2 / 2 - log Z),    x > 0
    with z = b / sqrt(p), r = phi(z) / Phi(z):
    log Z            log(2 pi / p) / 2 + z^2 / 2 + log Phi(z)
    E x              (z + r) / sqrt(p)
    E x^2            (1 + z (z + r)) / p

For z far below 0 all three are differences of nearly equal numbers. With y = -z they are Mills' ratio and its continued fraction instead,

    r = y + 1/(y + 2/(y + 3/(y + ...))),

whose parts are r - y and 1 - y (r - y) without a subtraction.

A row of several has density exp(h'x - x'P x / 2) on the positive orthant, whose normaliser nobody knows. `settle` finds, one coordinate after the
other, the independent coordinates nearest to it, or its mode; for a target that is log-concave, as this is, there is one optimum.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import ndtr, ndtri
from numpyro.distributions import constraints

TAIL = -3.0  # z below which the continued fraction is used
TERMS = {4: 16, 8: 40}  # of it, by the bytes of a number: their precision at TAIL
ROWS = 256  # rows settled together, in cache
SWEEPS = 3000  # over the coordinates, at most
GROUP = 6  # coordinates whose pull from the rest is one product of matrices


class Moments(NamedTuple):
    """Of one positive normal: log normaliser, E x, E x^2, and the variance, which their difference would lose to rounding."""

    log_z: jax.Array
    first: jax.Array
    second: jax.Array
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
    log_z = jnp.where(tail, -jnp.log(y + rest), 0.5 * (near**2 + jnp.log(2 * jnp.pi)) + jnp.log(mass))
    variance = jnp.where(tail, rest * (2 / below - rest), 1 - ratio * first)
    return Moments(log_z - jnp.log(root), first / root, second / p, jnp.maximum(variance, 0) / p)


@jax.custom_jvp
def _at(x: jax.Array, b: jax.Array, p: jax.Array) -> jax.Array:
    return x


@_at.defjvp
def _at_jvp(primals, tangents):
    """A draw moves with its parameters so that its quantile stays: Phi(w) / Phi(z) does not change, w = z - x sqrt(p)."""
    x, b, p = primals
    _, db, dp = tangents
    root = jnp.sqrt(p)
    z, dz = b / root, db / root - 0.5 * b / root * dp / p
    ratio = jnp.exp(moments(z - x * root, jnp.ones_like(p)).log_z - moments(z, jnp.ones_like(p)).log_z)  # of Mills' ratios
    return x, (1 - ratio) * dz / root - 0.5 * x * dp / p


def draw(key: jax.Array, b: jax.Array, p: jax.Array) -> jax.Array:
    """One draw of each, differentiable in b and p."""
    return _at(_draw(key, lax.stop_gradient(b), lax.stop_gradient(p)), b, p)


def _draw(key: jax.Array, b: jax.Array, p: jax.Array) -> jax.Array:
    """By inversion, in the tail by rejection from an exponential (Robert 1995)."""
    root = jnp.sqrt(p)
    z = b / root
    uniform_key, loop_key = jax.random.split(key)
    tail = z < TAIL
    near, y = jnp.where(tail, 0.0, z), jnp.where(tail, -z, -TAIL)
    tiny = jnp.finfo(z.dtype).tiny
    inverted = near - ndtri(jnp.maximum(jax.random.uniform(uniform_key, z.shape, z.dtype, minval=tiny) * ndtr(near), tiny))
    rate = 0.5 * y * (1 + jnp.sqrt(1 + 4 / y**2))

    def propose(carry):
        key, value, accepted = carry
        key, first, second = jax.random.split(key, 3)
        step = jax.random.exponential(first, z.shape, z.dtype) / rate
        fits = -jax.random.exponential(second, z.shape, z.dtype) < -0.5 * (y + step - rate) ** 2
        return key, jnp.where(fits & ~accepted, step, value), accepted | fits

    _, rejected, _ = lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, (loop_key, jnp.zeros_like(z), ~tail))
    return jnp.maximum(jnp.where(tail, rejected, inverted) / root, tiny)


def mode(b: jax.Array, p: jax.Array) -> jax.Array:
    """Of the density of x."""
    return jnp.maximum(b, 0) / p


def log_mode(b: jax.Array, p: jax.Array) -> jax.Array:
    """Of the density of log x: maximises log x + b x - p x^2 / 2."""
    root = jnp.sqrt(b**2 + 4 * p)
    return jnp.where(b > 0, (b + root) / (2 * p), 2 / (root - jnp.minimum(b, 0)))


# Rows of coupled ones ---------------------------------------------------------------------------------------------------------------


def _by_blocks(function: Any, first: jax.Array, second: jax.Array, *others: Any) -> jax.Array:
    """function(h (K, rows), P (K, K, rows or 1), *others (K, rows)) -> (K, rows) for ROWS rows at a time; everything else rows first."""
    num_rows, size = first.shape
    if num_rows == 0:
        return first
    block = min(ROWS, num_rows)
    num_blocks = -(-num_rows // block)

    def cut(x):
        padded = jnp.concatenate([x, jnp.broadcast_to(x[:1], (num_blocks * block - num_rows, *x.shape[1:]))])
        return padded.reshape(num_blocks, block, *x.shape[1:])

    def one(parts):
        second_part = second if len(second) == 1 else parts[1]
        return function(parts[0].T, jnp.moveaxis(second_part, 0, 2), *(part.T for part in parts[2:])).T

    parts = (cut(first), None if len(second) == 1 else cut(second), *(cut(x) for x in others))
    out = one(jax.tree.map(lambda x: x[0], parts))[None] if num_blocks == 1 else lax.map(one, parts)
    return out.reshape(-1, size)[:num_rows]


def _pull(h: jax.Array, P: jax.Array, x: jax.Array, k: Any) -> tuple[jax.Array, jax.Array]:
    """b and p of coordinate k given the others."""
    row = lax.dynamic_index_in_dim(P, k, keepdims=False)  # (K, rows or 1)
    p = lax.dynamic_index_in_dim(row, k, keepdims=False)
    here = lax.dynamic_index_in_dim(x, k, keepdims=False)
    return lax.dynamic_index_in_dim(h, k, keepdims=False) - jnp.sum(row * x, 0) + p * here, jnp.broadcast_to(p, here.shape)


def _group(update: Any, h: jax.Array, P: jax.Array, x: jax.Array, first: Any, size: int) -> jax.Array:
    """Coordinates `first` to `first + size` set to update(b, p) in turn, P being (K, K): what all coordinates pull is one product of matrices.

    Each is computed before the next one begins: fused, the compiler would compute the first again for every later one.
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


def _in_turn(update: Any, h: jax.Array, P: jax.Array, x: jax.Array) -> jax.Array:
    """Every coordinate once: by groups where rows share P and a product of matrices is fast, and else one by one."""
    if P.shape[2] > 1:
        return lax.fori_loop(0, len(x), lambda k, x: x.at[k].set(update(*_pull(h, P, x, k))), x)
    size = min(GROUP, len(x))
    groups, rest = divmod(len(x), size)
    x = lax.fori_loop(0, groups, lambda i, x: _group(update, h, P[..., 0], x, i * size, size), x)
    return _group(update, h, P[..., 0], x, groups * size, rest) if rest else x


def _one_by_one(update: Any, most: int, h: jax.Array, P: jax.Array, start: jax.Array) -> jax.Array:
    """Coordinates set to update(b, p) in turn until they rest: until they move by no more than a few roundings of themselves, their sd, or of b."""
    diagonal = jnp.diagonal(P).T  # (K, rows or 1)
    eps = jnp.finfo(h.dtype).eps
    largest = jnp.max(jnp.abs(P), 0)  # (K, rows or 1)

    def sweep(carry):
        number, x, _ = carry
        new = _in_turn(update, h, P, x)
        size = jnp.abs(new) + 1 / jnp.sqrt(diagonal) + jnp.sum(largest * jnp.abs(new), 0) / diagonal
        return number + 1, new, jnp.max(jnp.abs(new - x) / size)

    begin = (0, start, jnp.asarray(jnp.inf, h.dtype))
    return lax.while_loop(lambda carry: (carry[0] < most) & (carry[2] > 4 * eps), sweep, begin)[1]


def settle(first: jax.Array, second: jax.Array, update: Any, start: jax.Array | None = None, most: int = SWEEPS) -> jax.Array:
    """(rows, K) coordinates at which each is update(b, p) given the others, of h = `first` (rows, K) and P = `second` (rows or 1, K, K).

    start: where to begin; by default where the row would be if all its coordinates were alike. most: sweeps over the coordinates.
    """
    if start is None:
        start = jnp.maximum(first, 0) / jnp.sum(jnp.abs(second), -1)
    return _by_blocks(partial(_one_by_one, update, most), first, second, start)


def refresh(key: jax.Array, first: jax.Array, second: jax.Array, x: jax.Array) -> jax.Array:
    """One Gibbs sweep over the coordinates of every row."""
    h, P = first.T, jnp.moveaxis(second, 0, 2)
    return lax.fori_loop(0, len(h), lambda k, x: x.at[k].set(draw(jax.random.fold_in(key, k), *_pull(h, P, x, k))), x.T).T


def _rest(second: jax.Array) -> jax.Array:
    """P without its diagonal."""
    return second * (1 - jnp.eye(second.shape[-1], dtype=second.dtype))


@jax.custom_jvp
def independent(first: jax.Array, second: jax.Array, start: jax.Array) -> jax.Array:
    """(rows, K) b of the independent coordinates nearest to rows with h = `first`, P = `second`; their p is P's diagonal."""
    mean = settle(first, second, lambda b, p: moments(b, p).first, start)
    return first - _apply(_rest(second), mean)


def _apply(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return vector @ matrix[0] if len(matrix) == 1 else (matrix @ vector[..., None])[..., 0]


@independent.defjvp
def _independent_jvp(primals, tangents):
    """b = h - rest(P) E x(b, p), differentiated: (I + rest(P) var) db = dh - rest(dP) E x - rest(P) dE/dp dp."""
    first, second, start = primals
    change, change_second, _ = tangents
    b = independent(first, second, start)
    p = jnp.broadcast_to(jnp.diagonal(second, axis1=1, axis2=2), b.shape)
    found = moments(b, p)
    _, by_p = jax.jvp(lambda p: moments(b, p).first, (p,), (jnp.broadcast_to(jnp.diagonal(change_second, axis1=1, axis2=2), b.shape),))
    right = change - _apply(_rest(change_second), found.first) - _apply(_rest(second), by_p)
    matrix = jnp.eye(b.shape[1]) + _rest(second) * found.variance[:, None, :]
    return b, jnp.linalg.solve(matrix, right[..., None])[..., 0]


# As NumPyro sees one ----------------------------------------------------------------------------------------------------------------


class PositiveNormal(dist.Distribution):
    """A normal with mean `loc` and sd `scale`, both before it is cut off at zero. Right however far below zero `loc` is."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012 (NumPyro's own convention)
    support = constraints.positive
    reparametrized_params = ["loc", "scale"]  # noqa: RUF012

    def __init__(self, loc: Any = 0.0, scale: Any = 1.0, *, validate_args: bool | None = None) -> None:
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
