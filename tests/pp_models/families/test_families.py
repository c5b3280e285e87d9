"""Exponential families agree with autodiff, with NumPyro and with their own draws."""

import importlib
import pkgutil

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.distributions.transforms import biject_to

from pp_models import families as fam
from pp_models.families import NormalWishart, Pair, unpack
from pp_models.families._gamma import FEW_DRAWS, MANY_DRAWS
from pp_models.families._mean_and_precision import MeanAndPrecisionTransform, mean_and_precision
from pp_models.families._normal import TOGETHER
from pp_models.families.slopes import log_gamma_slope
from pp_models.families.special import digamma, digamma_parts


def natural(name, seed=0):
    rng = np.random.default_rng(seed)
    positive = lambda *shape: jnp.asarray(rng.gamma(2.0, 1.0, shape) + 0.3)  # noqa: E731
    if name == "dirichlet":
        return positive(4, 3)
    if name == "gamma":
        return Pair(positive(4, 3), -positive(4, 3))
    if name == "gamma_tied":
        return Pair(positive(4, 3), -positive(4, 1))
    if name == "beta":
        return Pair(positive(4, 3), positive(4, 3))
    factor = rng.normal(size=(4, 3, 3))
    precision = jnp.asarray(factor @ np.swapaxes(factor, 1, 2) + np.eye(3))
    if name == "wishart":
        return Pair(0.5 * positive(4), -0.5 * precision)
    if name == "normal_wishart":
        return fam.normal_wishart.natural(
            NormalWishart(
                positive(4, 3), positive(4), 4 + positive(4), jnp.linalg.cholesky(precision)
            )
        )
    if name.endswith("_tied"):
        precision = precision[:1]
    return Pair(jnp.asarray(rng.normal(size=(4, 3))), -0.5 * precision)


def by_row(family, natural, stats):
    """The log density of each row, or their sum if rows share a statistic."""
    rows = fam.log_density(family, natural, stats)
    return jnp.sum(rows) if tied_rows(family) else rows


def tied_rows(family):
    return family.name in ("normal_tied", "positive_tied")


families = pytest.mark.parametrize("name", sorted(fam.FAMILIES))


@families
def test_mean_is_the_gradient_of_the_log_normalizer(name):
    """E[t] = dA/dnatural."""
    family, eta = fam.FAMILIES[name], natural(name)
    gradient = jax.jit(jax.grad(lambda n: jnp.sum(family.log_normalizer(n))))(eta)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(family.mean(eta)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@families
def test_density_is_numpyros(name):
    """The family's log density at a draw is that of its NumPyro distribution, row by row."""
    family, eta = fam.FAMILIES[name], natural(name)
    x = family.value(family.sample(jax.random.key(0), eta))
    theirs = np.asarray(family.distribution(eta).log_prob(x)).reshape(4, -1).sum(1)
    theirs = theirs.sum() if tied_rows(family) else theirs
    np.testing.assert_allclose(by_row(family, eta, family.stats(x)), theirs, rtol=1e-10, atol=1e-14)


@families
def test_natural_inverts_distribution(name):
    """`natural` inverts `distribution`. A point's distribution has no curvature: the location is
    kept, the curvature is the identity."""
    family, eta = fam.FAMILIES[name], natural(name)
    if not family.has_density:
        eta = Pair(family.mean(eta).first, jnp.broadcast_to(-0.5 * jnp.eye(3), (4, 3, 3)))
    eta = family.uncoupled(eta)
    for a, b in zip(
        jax.tree.leaves(family.natural(family.distribution(eta))), jax.tree.leaves(eta), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@families
def test_regression_reproduces_the_covariance_with_the_value(name):
    """Cov(t) b, the slope of E[t] along b, pairs with any change of the natural parameter as
    Cov(t, <c, x>) does: as the slope of E<c, x>.
    """
    family, eta = fam.FAMILIES[name], natural(name)
    mean = family.distribution(eta).mean
    weights = jax.random.normal(jax.random.key(0), mean.shape)
    if name.endswith("wishart"):  # of a symmetric matrix
        weights = weights.at[..., -3:, :].add(jnp.swapaxes(weights[..., -3:, :], -1, -2))
    b = fam.regression(family, eta, weights)
    change = jax.tree.map(lambda x: 0.1 * x, natural(name, seed=1))
    _, moved = jax.jvp(family.mean, (eta,), (change,))
    found = sum(jnp.vdot(x, y) for x, y in zip(*map(jax.tree.leaves, (b, moved)), strict=True))
    _, slope = jax.jvp(lambda n: family.distribution(n).mean, (eta,), (change,))
    np.testing.assert_allclose(found, jnp.vdot(weights, slope), rtol=1e-7)


@families
def test_draws_have_the_mean_statistics(name):
    """The average statistic of 20,000 draws is E[t], within five standard errors plus 1e-11 for
    rounding (a point has no other error)."""
    family, eta = fam.FAMILIES[name], natural(name)
    draws = jax.jit(jax.vmap(lambda key: family.sample(key, eta)))(
        jax.random.split(jax.random.key(1), 20_000)
    )
    for sample, mean in zip(jax.tree.leaves(draws), jax.tree.leaves(family.mean(eta)), strict=True):
        error = np.asarray(sample).std(0) / np.sqrt(20_000)
        assert np.all(np.abs(np.asarray(sample).mean(0) - mean) < 5 * error + 1e-11)


@families
def test_modes_maximise(name):
    """`mode` maximises <natural, t(x)>, and summarise(..., "mode") the Lebesgue density: no nearby
    point is better."""
    family, eta = fam.FAMILIES[name], jax.tree.map(lambda x: x, natural(name))
    eta = jax.tree.map(
        lambda n, b: n - b, eta, family.base
    )  # concentrations above one, so that both modes exist
    for summary in ("log_mode", "mode"):

        def objective(t, summary=summary):
            rows = fam.dot(eta, t) + fam.log_measure(family, t, summary)
            return jnp.sum(rows) if tied_rows(family) else rows

        best = fam.summarise(family, eta, summary)
        x, height = family.value(best), jax.jit(lambda x, f=objective: f(family.stats(x)))
        for a, b in zip(jax.tree.leaves(best), jax.tree.leaves(family.stats(x)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        for seed in range(20):
            nearby = np.asarray(x) * np.exp(0.01 * np.random.default_rng(seed).normal(size=x.shape))
            if name == "dirichlet":
                nearby = nearby / nearby.sum(-1, keepdims=True)
            if name == "normal_wishart":
                nearby[:, 1:] = (nearby[:, 1:] + np.swapaxes(nearby[:, 1:], 1, 2)) / 2
            if name == "wishart":
                nearby = (nearby + np.swapaxes(nearby, 1, 2)) / 2
            assert np.all(
                np.asarray(height(jnp.asarray(nearby))) <= np.asarray(objective(best)) + 1e-12
            )


@families
def test_entropy_is_the_mean_of_minus_log_density(name):
    """The entropy, relative to the base measure, is the mean of -log q over draws. A point's is 0,
    to rounding (1e-11)."""
    family, eta = fam.FAMILIES[name], natural(name)
    plain = family.uncoupled(eta)
    draws = jax.jit(jax.vmap(lambda key: fam.log_prior(family, plain, family.sample(key, eta))))(
        jax.random.split(jax.random.key(2), 20_000)
    )
    draws, entropy = np.asarray(draws), fam.entropy(family, eta)
    if tied_rows(family):
        draws, entropy = draws.sum(1), jnp.sum(entropy)
    error = draws.std(0) / np.sqrt(20_000)
    assert np.all(np.abs(-draws.mean(0) - entropy) < 5 * error + 1e-11)


def test_divergence_of_points_is_the_loss_of_moving():
    """The divergence is (x - y)' P_y (x - y) / 2, the limit of that of normals as their precision
    grows."""
    here, there = natural("point", 0), natural("point", 1)
    x, y = (fam.point.mean(eta).first for eta in (here, there))
    expected = jnp.einsum("ki,kij,kj->k", x - y, -there.second, x - y)
    np.testing.assert_allclose(fam.divergence(fam.point, here, there), expected, rtol=1e-9)
    sharp = [fam.Pair(1e7 * eta.first, 1e7 * eta.second) for eta in (here, there)]
    same = fam.Pair(
        (-2 * sharp[1].second @ x[..., None])[..., 0], sharp[1].second
    )  # the curvature of `there` at the location of `here`
    np.testing.assert_allclose(
        fam.divergence(fam.normal, same, sharp[1]) / 1e7, expected, rtol=1e-6
    )


def test_newton_steps_are_cut():
    """A location moves at most LONGEST_STEP towards the target, whose curvature it gets. Shorter
    steps, and fractions of them, are not cut."""
    here, target = fam.point.mean(natural("point", 0)), natural("point", 1)
    far, near = (fam.Pair(scale * target.first, target.second) for scale in (1e3, 0.0))
    near = fam.Pair((-2 * target.second @ (here.first + 0.1)[..., None])[..., 0], near.second)
    for wanted, fraction, length in (
        (far, 1.0, fam.LONGEST_STEP),
        (far, 0.25, 0.25 * fam.LONGEST_STEP),
        (near, 1.0, 0.1 * 3**0.5),
        (near, 0.5, 0.05 * 3**0.5),
    ):
        cut = fam.newton_step(here, wanted, fraction)
        step, whole = (fam.point.mean(eta).first - here.first for eta in (cut, wanted))
        np.testing.assert_allclose(jnp.linalg.norm(step, axis=-1), length, rtol=1e-9)
        np.testing.assert_allclose(
            jnp.sum(step * whole, -1), length * jnp.linalg.norm(whole, axis=-1), rtol=1e-9
        )
        np.testing.assert_array_equal(cut.second, wanted.second)


def test_one_dirichlet_vector_is_one_row():
    """A Dirichlet vector without an axis of rows has the density, entropy and statistics of the
    same vector as a matrix of one row."""
    eta = natural("dirichlet")[0]
    log_x = fam.dirichlet.sample(jax.random.key(0), eta)
    assert log_x.shape == eta.shape
    np.testing.assert_allclose(
        jnp.sum(fam.log_density(fam.dirichlet, eta, log_x)),
        dist.Dirichlet(eta).log_prob(jnp.exp(log_x)),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        jnp.sum(fam.entropy(fam.dirichlet, eta)),
        fam.entropy(fam.dirichlet, eta[None])[0],
        rtol=1e-12,
    )
    for summary in ("mean", "mode", "log_mode"):
        np.testing.assert_allclose(
            fam.summarise(fam.dirichlet, eta, summary),
            fam.summarise(fam.dirichlet, eta[None], summary)[0],
            rtol=1e-12,
        )


def test_beta_draws_have_finite_logarithms():
    """Statistics are finite although float32 rounds draws near 0 and 1 to 0 and 1."""
    with jax.enable_x64(False):
        for x in (
            jnp.asarray([0.0, 0.5, 1.0]),
            fam.beta.value(
                fam.beta.sample(jax.random.key(0), Pair(jnp.full(50, 1e-3), jnp.full(50, 1e-3)))
            ),
        ):
            assert all(np.all(np.isfinite(leaf)) for leaf in fam.beta.stats(x))


def test_mean_and_precision_transform():
    """The transform is bijective onto means and positive-definite precisions, and its log Jacobian
    is that of autodiff on the free entries."""
    transform, size = biject_to(mean_and_precision), 3
    assert isinstance(transform, MeanAndPrecisionTransform)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 9)))
    y = transform(x)
    assert (
        y.shape == transform.forward_shape(x.shape) == (5, 4, 3)
        and transform.inverse_shape(y.shape) == x.shape
    )
    assert np.all(mean_and_precision(y)) and not np.any(mean_and_precision(-y))
    np.testing.assert_allclose(transform.inv(y), x, rtol=1e-9)
    lower = np.tril_indices(size)

    def free(x):
        mean, precision = unpack(transform(x))
        return jnp.concatenate([mean, precision[lower]])

    expected = [np.linalg.slogdet(jax.jacobian(free)(one))[1] for one in x]
    np.testing.assert_allclose(transform.log_abs_det_jacobian(x, y), expected, rtol=1e-9)


def test_normal_wishart_moments():
    """`mean` and `variance` are those of NumPyro's own draws, 20,000 of them, within five standard
    errors (of a variance: 10 %)."""
    q = fam.normal_wishart.distribution(natural("normal_wishart"))
    q = NormalWishart(
        q.loc, q.strength, q.df + 4, q.scatter_tril
    )  # fourth moments of the mean, for the variance's error
    draws = np.asarray(q.sample(jax.random.key(0), (20_000,)))
    assert np.all(np.abs(draws.mean(0) - q.mean) < 5 * np.sqrt(np.asarray(q.variance) / 20_000))
    np.testing.assert_allclose(draws.var(0), q.variance, rtol=0.1)
    heavy = NormalWishart(q.loc, q.strength, jnp.full(4, 4.0), q.scatter_tril)
    assert np.all(np.isinf(heavy.variance[:, 0])) and np.all(np.isfinite(heavy.variance[:, 1:]))


@pytest.mark.parametrize("shape", [0.02, 0.3, 0.999, 1.0, 2.5, 40.0, 3000.0])
def test_gamma_draws(shape):
    """The logarithm of the draws is log-gamma distributed: Kolmogorov-Smirnov on 20,000 draws, p >
    1e-4 with a fixed seed."""
    draws = np.asarray(fam.log_gamma_draw(jax.random.key(3), jnp.full(20_000, shape)))
    assert scipy.stats.kstest(draws, scipy.stats.loggamma(shape).cdf).pvalue > 1e-4


@pytest.mark.parametrize("size", [FEW_DRAWS, 5 * FEW_DRAWS, MANY_DRAWS + 77])
def test_gamma_draws_of_any_number(size):
    """The distribution is the same for few draws, many, and more than are made at a time; the mixed
    shapes are those rejected most often."""
    shapes = np.where(np.arange(size) % 2, 0.05, 1.0)
    draws = np.asarray(fam.log_gamma_draw(jax.random.key(3), jnp.asarray(shapes).reshape(1, -1)))[0]
    for shape in (0.05, 1.0):
        assert (
            scipy.stats.kstest(draws[shapes == shape], scipy.stats.loggamma(shape).cdf).pvalue
            > 1e-4
        )


def test_gamma_draws_in_single_precision():
    """Rounding does not spoil the acceptance test of large shapes: standardised draws at shape 1e6
    are normal."""
    with jax.enable_x64(False):
        draws = np.asarray(fam.log_gamma_draw(jax.random.key(4), jnp.full(20_000, 1e6)), np.float64)
    assert scipy.stats.kstest((draws - np.log(1e6)) * 1e3, "norm").pvalue > 1e-4


def test_tiny_concentrations_in_single_precision():
    """A concentration of 1e-6 gives finite draws, means and normalisers in float32."""
    with jax.enable_x64(False):
        eta = jnp.full((5, 7), 1e-6)
        for family, n in ((fam.dirichlet, eta), (fam.gamma, Pair(eta, -jnp.ones_like(eta)))):
            for tree in (
                family.sample(jax.random.key(0), n),
                family.mean(n),
                family.log_normalizer(n),
                fam.summarise(family, n, "mode"),
            ):
                assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))
            assert np.all(family.value(family.sample(jax.random.key(0), n)) > 0)


def test_fast_digamma():
    """The float32 digamma is accurate to 2e-6 from 1e-6 to 1e6."""
    x = np.geomspace(1e-6, 1e6, 2001)
    exact = np.asarray(digamma(jnp.asarray(x)))
    with jax.enable_x64(False):
        single = jnp.asarray(x, jnp.float32)
        fast = np.asarray(digamma(single))
        mantissa, exponent = digamma_parts(single)
        assert np.all(np.isfinite(mantissa)) and np.all(np.isfinite(exponent))
    assert fast.dtype == np.float32
    np.testing.assert_allclose(fast, exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("num_rows", "size"), [(0, 3), (1, 1), (1, 5), (TOGETHER, 4), (2 * TOGETHER + 3, 7), (5, 90)]
)
def test_normals_are_solved_together(num_rows, size):
    """`normal_mean` is P^-1 (P m), plus L^-T z with noise z, for any number of rows. Condition
    numbers are at most 1e3: 1e-9."""
    rng = np.random.default_rng(num_rows + size)
    root = rng.normal(size=(num_rows, size, size))
    precision, first = (
        root @ root.transpose(0, 2, 1) + size * np.eye(size),
        rng.normal(size=(num_rows, size)),
    )
    noise = rng.normal(size=(num_rows, size))
    natural = fam.Pair(jnp.asarray(first), jnp.asarray(-0.5 * precision))
    lower = np.linalg.cholesky(precision)
    mean = np.linalg.solve(precision, first[..., None])[..., 0]
    np.testing.assert_allclose(fam.normal_mean(natural), mean, rtol=1e-9, atol=1e-12)
    moved = mean + np.linalg.solve(lower.transpose(0, 2, 1), noise[..., None])[..., 0]
    np.testing.assert_allclose(
        fam.normal_mean(natural, jnp.asarray(noise)), moved, rtol=1e-9, atol=1e-12
    )


def test_a_family_is_never_hidden_by_a_module():
    """`families.NAME` stays the family, whichever module of the package is imported afterwards."""
    for module in pkgutil.iter_modules(fam.__path__, fam.__name__ + "."):
        importlib.import_module(module.name)
    assert all(getattr(fam, name) is family for name, family in fam.FAMILIES.items())
    assert all(hasattr(fam, name) for name in fam.__all__)
    assert not {module.name for module in pkgutil.iter_modules(fam.__path__)} & set(fam.__all__)


@pytest.mark.parametrize("name", sorted(n for n, f in fam.FAMILIES.items() if f.slope is not None))
def test_slopes_of_draws_average_to_the_natural_gradient(name):
    """With f = |t - c|^2 / 2 the expectation is known, (tr V + |mu - c|^2) / 2. Fisher times the
    average over draws is its gradient in the natural parameter, to 5 standard errors; the mean of t
    in place of draws is caught. With f linear and w fixed the average is w itself.
    """
    family, eta = fam.FAMILIES[name], natural(name)
    flat, back = jax.flatten_util.ravel_pytree(eta)
    near = jax.tree.map(lambda t: t - 0.7, family.mean(eta))

    def expected(x):
        mean = jax.flatten_util.ravel_pytree(family.mean(back(x)))[0]
        spread = jnp.trace(jax.jacobian(lambda y: moments(y))(x))
        return 0.5 * (spread + jnp.sum((mean - jax.flatten_util.ravel_pytree(near)[0]) ** 2))

    def moments(x):
        return jax.flatten_util.ravel_pytree(family.mean(back(x)))[0]

    @jax.jit
    def estimate(key):
        draw_key, key = jax.random.split(key)
        t = family.sample(draw_key, eta)
        found = family.slope(key, eta, t, jax.tree.map(jnp.subtract, t, near))
        return moments_along(found)

    def moments_along(change):
        return jax.flatten_util.ravel_pytree(jax.jvp(family.mean, (eta,), (change,))[1])[0]

    number = 4_000
    draws = np.asarray(jax.lax.map(estimate, jax.random.split(jax.random.key(5), number)))
    error = draws.std(0) / np.sqrt(number) + 1e-9
    truth = np.asarray(jax.grad(expected)(flat))
    assert np.all(np.abs(draws.mean(0) - truth) < 5 * error)
    fixed = moments_along(jax.tree.map(lambda t, c: t - c, family.mean(eta), near))
    assert np.any(np.abs(np.asarray(fixed) - truth) > 8 * error)


@pytest.mark.parametrize("name", sorted(n for n, f in fam.FAMILIES.items() if f.slope is not None))
def test_a_noisy_step_stays_inside(name):
    """Steps far outside leave a finite log normaliser; ordinary ones are not changed."""
    family, eta = fam.FAMILIES[name], natural(name)
    far = family.inside(eta, jax.tree.map(lambda x: -5 * x, eta))
    assert np.all(np.isfinite(family.log_normalizer(far)))
    for a, b in zip(*map(jax.tree.leaves, (far, family.mean(far))), strict=True):
        assert np.all(np.isfinite(a)) and np.all(np.isfinite(b))
    usual = jax.tree.map(lambda x: 0.9 * x, eta)
    for a, b in zip(*map(jax.tree.leaves, (family.inside(eta, usual), usual)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gamma_draws_move_with_their_shape_along_quantiles():
    """The slope of log x is the derivative of the log quantile, by differences of scipy's: 1e-4
    relative within 2 sd for small and large shapes, and 3e-4 at 3 sd where the cube root stands in.
    Single precision agrees to 1e-3.
    """
    for shape in (0.02, 0.5, 3.0, 60.0, 101.0, 3e3, 1e6):
        for normal, within in ((-3.0, 3e-4), (-2.0, 1e-4), (0.1, 1e-4), (2.0, 1e-4), (3.0, 3e-4)):
            u, step = scipy.stats.norm.cdf(normal), 1e-4 * shape
            low, high = (scipy.stats.gamma.ppf(u, shape + s) for s in (-step, step))
            if low < 1e-250:
                continue
            truth = (np.log(high) - np.log(low)) / (2 * step)
            log_x = np.log(scipy.stats.gamma.ppf(u, shape))
            found = float(log_gamma_slope(jnp.asarray(shape), jnp.asarray(log_x)))
            assert abs(found / truth - 1) < within, (shape, normal)
            with jax.enable_x64(False):
                single = log_gamma_slope(jnp.float32(shape), jnp.float32(log_x))
            assert abs(float(single) / truth - 1) < 1e-3, (shape, normal)
