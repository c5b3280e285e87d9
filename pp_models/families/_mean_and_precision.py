"""The normal-Wishart distribution of a Gaussian's mean and precision, as one NumPyro site.

    Lambda ~ Wishart(nu, W),    mu | Lambda ~ Normal(m, (kappa Lambda)^-1)

A value packs both into one array (..., D + 1, D): row 0 is the mean, the rows below it are the
precision matrix. Its density is the product of NumPyro's Wishart and normal densities, with respect
to the Lebesgue measure on the mean and on the lower triangle of the precision.
"""

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import ParameterFreeTransform, biject_to


def pack(mean: jax.Array, precision: jax.Array) -> jax.Array:
    """(..., D + 1, D) from the mean (..., D) and the precision (..., D, D)."""
    return jnp.concatenate([mean[..., None, :], precision], axis=-2)


def unpack(value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean and the precision."""
    return value[..., 0, :], value[..., 1:, :]


class _MeanAndPrecision(constraints.ParameterFreeConstraint):
    """Row 0 is any vector, the rows below a positive-definite matrix."""

    event_dim = 2

    def __call__(self, x):
        mean, precision = unpack(x)
        return constraints.real_vector(mean) & constraints.positive_definite(precision)

    def feasible_like(self, prototype):
        mean, precision = unpack(prototype)
        return pack(jnp.zeros_like(mean), constraints.positive_definite.feasible_like(precision))


mean_and_precision = _MeanAndPrecision()


class MeanAndPrecisionTransform(ParameterFreeTransform):
    """A real vector of D + D(D+1)/2 numbers to a packed value. The mean is unchanged, the precision
    goes through NumPyro's Cholesky transforms."""

    domain = constraints.real_vector
    codomain = mean_and_precision

    def __call__(self, x):
        size = _dimension(x.shape[-1])
        return pack(x[..., :size], _to_precision()(x[..., size:]))

    def _inverse(self, y):
        mean, precision = unpack(y)
        return jnp.concatenate([mean, _to_precision().inv(precision)], axis=-1)

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        free = x[..., _dimension(x.shape[-1]) :]
        return _to_precision().log_abs_det_jacobian(free, unpack(y)[1])

    def forward_shape(self, shape):
        size = _dimension(shape[-1])
        return (*shape[:-1], size + 1, size)

    def inverse_shape(self, shape):
        size = shape[-1]
        return (*shape[:-2], size * (size + 3) // 2)


def _to_precision():
    return biject_to(constraints.positive_definite)


def _dimension(length: int) -> int:
    """D from D + D(D+1)/2."""
    return round((math.sqrt(9 + 8 * length) - 3) / 2)


@biject_to.register(mean_and_precision)
def _transform(constraint):
    return MeanAndPrecisionTransform()


class NormalWishart(dist.Distribution):
    """The distribution of a packed mean and precision.

    loc:          m, (..., D)
    strength:     kappa
    df:           nu > D - 1
    scatter_tril: the lower Cholesky factor of W^-1, (..., D, D)
    """

    arg_constraints = {  # noqa: RUF012 (NumPyro's own convention)
        "loc": constraints.real_vector,
        "strength": constraints.positive,
        "df": constraints.positive,
        "scatter_tril": constraints.lower_cholesky,
    }
    support = mean_and_precision
    reparametrized_params = ["loc", "strength", "df", "scatter_tril"]  # noqa: RUF012

    def __init__(self, loc, strength, df, scatter_tril, *, validate_args=None):
        size = jnp.shape(loc)[-1]
        vector, matrix = jnp.shape(loc)[:-1], jnp.shape(scatter_tril)[:-2]
        batch = jnp.broadcast_shapes(vector, jnp.shape(strength), jnp.shape(df), matrix)
        self.loc = jnp.broadcast_to(loc, (*batch, size))
        self.strength, self.df = jnp.broadcast_to(strength, batch), jnp.broadcast_to(df, batch)
        self.scatter_tril = jnp.broadcast_to(scatter_tril, (*batch, size, size))
        super().__init__(batch, (size + 1, size), validate_args=validate_args)

    @property
    def _precision(self) -> dist.Distribution:
        scatter = self.scatter_tril @ jnp.swapaxes(self.scatter_tril, -1, -2)
        return dist.Wishart(self.df, rate_matrix=scatter)

    def _mean_given(self, precision: jax.Array) -> dist.Distribution:
        scaled = self.strength[..., None, None] * precision
        return dist.MultivariateNormal(self.loc, precision_matrix=scaled)

    def sample(self, key, sample_shape=()):
        precision_key, mean_key = jax.random.split(key)
        precision = self._precision.sample(precision_key, sample_shape)
        return pack(self._mean_given(precision).sample(mean_key), precision)

    def log_prob(self, value):
        mean, precision = unpack(value)
        return self._precision.log_prob(precision) + self._mean_given(precision).log_prob(mean)

    @property
    def mean(self):
        return pack(self.loc, self._precision.mean)

    @property
    def variance(self):
        """Of every entry. The mean is multivariate t, with infinite variance unless nu > D + 1."""
        size = self.event_shape[-1]
        scatter = jnp.sum(self.scatter_tril**2, -1)  # the diagonal of W^-1
        rest = self.df - size - 1
        spread = scatter / (self.strength * jnp.where(rest > 0, rest, 1))[..., None]
        of_mean = jnp.where(rest[..., None] > 0, spread, jnp.inf)
        return pack(of_mean, self._precision.variance)
