"""The Gaussian mixture against Bishop's equations (Pattern Recognition and Machine Learning, 10.2),
closed forms and symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.scipy.special import digamma, logsumexp

import inference
import pp_models
from inference.comparison import compare
from inference.core import align
from inference.core import objective as obj
from inference.run import fit as fitting
from pp_models import families as fam
from pp_models import model
from pp_models.errors import InputError
from pp_models.families import NormalWishart
from pp_models.models import gaussian_mixture


@pytest.fixture(scope="module")
def problem():
    hyper, data = pp_models.load("gaussian_mixture").example(jax.random.key(0))
    return fitting.make_problem("gaussian_mixture", data, hyper, devices=jax.local_devices()[:1])


def some_q(num_components, size, seed=0):
    """Dirichlet and normal-Wishart parameters of no special kind."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(num_components, size, size))
    tril = jnp.linalg.cholesky(jnp.asarray(factor @ np.swapaxes(factor, 1, 2) + np.eye(size)))
    loc, kappa, nu = (
        rng.normal(size=(num_components, size)),
        rng.gamma(2, 1, num_components) + 0.2,
        size + 1 + rng.gamma(2, 1, num_components),
    )
    return jnp.asarray(rng.gamma(2, 1, num_components)), NormalWishart(
        jnp.asarray(loc), jnp.asarray(kappa), jnp.asarray(nu), tril
    )


def natural(weights, components):
    return {"pi": weights, "components": fam.normal_wishart.natural(components)}


def log_responsibilities(x, weights, q):
    """Bishop 10.46 with 10.64-10.66, row by row, unnormalised."""
    size = x.shape[1]
    scatter = np.asarray(q.scatter_tril @ jnp.swapaxes(q.scatter_tril, 1, 2))
    out = np.zeros((len(x), len(weights)))
    for k in range(len(weights)):
        scale = np.linalg.inv(scatter[k])
        log_det = (
            sum(digamma((q.df[k] - j) / 2) for j in range(size))
            + size * np.log(2)
            + np.linalg.slogdet(scale)[1]
        )
        for n in range(len(x)):
            away = x[n] - np.asarray(q.loc[k])
            distance = size / q.strength[k] + q.df[k] * away @ scale @ away
            out[n, k] = (
                digamma(weights[k])
                - digamma(weights.sum())
                + 0.5 * log_det
                - 0.5 * size * np.log(2 * np.pi)
                - 0.5 * distance
            )
    return out


def test_updates_are_bishops(problem):
    """dF/dmu is 10.58 for alpha_k and 10.60-10.63 for beta_k, m_k, W_k^-1 and nu_k; F's rows are
    10.46's normalisers."""
    x, hyper = problem.data.values.astype(float), problem.hyper
    weights, q = some_q(2, 2)
    logs = log_responsibilities(x, weights, q)
    stats, batch = obj.summarise(problem.model, natural(weights, q)), problem.data.pack()
    np.testing.assert_allclose(
        jax.jit(lambda t: problem.model.log_local(hyper, t, batch))(stats),
        logsumexp(logs, axis=1).sum(),
        rtol=1e-11,
    )
    gradient = jax.jit(jax.grad(lambda t: model.joint(problem.model, hyper, t, batch)))(stats)
    r = np.asarray(jax.nn.softmax(logs, axis=1))
    counts = r.sum(0)
    np.testing.assert_allclose(gradient["pi"], 1.5 + counts, rtol=1e-10)
    new = fam.normal_wishart.distribution(gradient["components"])
    m0, kappa0 = np.asarray(hyper.mean), float(hyper.kappa)
    np.testing.assert_allclose(new.strength, kappa0 + counts, rtol=1e-10)
    np.testing.assert_allclose(new.df, hyper.nu + counts, rtol=1e-10)
    for k in range(2):
        average = r[:, k] @ x / counts[k]
        within = (r[:, k, None] * (x - average)).T @ (x - average)  # N_k S_k
        between = kappa0 * counts[k] / (kappa0 + counts[k]) * np.outer(average - m0, average - m0)
        np.testing.assert_allclose(
            new.loc[k], (kappa0 * m0 + counts[k] * average) / (kappa0 + counts[k]), rtol=1e-10
        )
        np.testing.assert_allclose(
            new.scatter_tril[k] @ new.scatter_tril[k].T,
            np.diag(hyper.scale) + within + between,
            rtol=1e-9,
        )


def test_distances_are_the_polynomial_they_stand_for(problem):
    """The value through Cholesky factors, and the derivative written out, are those of x' L x - 2
    x' L mu + mu' L mu by autodiff."""
    x = jnp.asarray(problem.data.values, float)
    t = fam.normal_wishart.mean(fam.normal_wishart.natural(some_q(3, 2, seed=1)[1]))

    def printed(x, t):
        return jnp.einsum("ni,kij,nj->nk", x, t.precision, x) - 2 * x @ t.weighted.T + t.quadratic

    np.testing.assert_allclose(gaussian_mixture._distances(x, t), printed(x, t), rtol=1e-10)
    cotangent = jnp.asarray(np.random.default_rng(0).normal(size=(len(x), 3)))
    ours = jax.vjp(lambda t: gaussian_mixture._distances(x, t), t)[1](cotangent)
    theirs = jax.vjp(lambda t: printed(x, t), t)[1](cotangent)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def log_evidence(x, m, kappa, nu, scatter):
    """log p(x) of one Gaussian with a normal-Wishart prior, as the product of its predictive t
    densities, one row after the other."""
    total, size = 0.0, x.shape[1]
    for row in x:
        df = nu - size + 1
        total += scipy.stats.multivariate_t(m, scatter * (kappa + 1) / (kappa * df), df).logpdf(row)
        away = row - m
        scatter = scatter + kappa / (kappa + 1) * np.outer(away, away)
        m, kappa, nu = (kappa * m + row) / (kappa + 1), kappa + 1, nu + 1
    return total


@pytest.mark.parametrize("num_rows", [1, 12])
def test_one_component_is_exact(problem, num_rows):
    """With K = 1 nothing is eliminated: CAVI's bound is the log evidence, whatever the number of
    rows."""
    data = problem.data.select(np.arange(num_rows))
    fit = inference.fit(
        "gaussian_mixture", data, "cavi", problem.hyper._replace(num_components=1), progress=False
    )
    hyper = problem.hyper
    exact = log_evidence(
        data.values.astype(float),
        np.asarray(hyper.mean),
        float(hyper.kappa),
        float(hyper.nu),
        np.diag(hyper.scale),
    )
    np.testing.assert_allclose(fit.bound, exact, rtol=1e-6)


def test_bound_follows_a_change_of_units(problem):
    """Columns shifted and stretched by c, prior and q with them: the bound changes by -N sum log c,
    the density's own change of units."""
    c, shift = np.array([3.0, 0.2]), np.array([-5.0, 40.0])
    weights, q = some_q(2, 2)
    moved_q = NormalWishart(q.loc * c + shift, q.strength, q.df, q.scatter_tril * c[:, None])
    hyper = problem.hyper
    moved_hyper = hyper._replace(mean=hyper.mean * c + shift, scale=hyper.scale * c**2)
    data = pp_models.data.dense(problem.data.values.astype(float) * c + shift)

    def bound(hyper, batch, q):
        eta = natural(weights, q)
        entropy = sum(
            jnp.sum(fam.entropy(family, eta[site]))
            for site, family in problem.model.families.items()
        )
        return model.joint(problem.model, hyper, obj.summarise(problem.model, eta), batch) + entropy

    before, after = bound(hyper, problem.data.pack(), q), bound(moved_hyper, data.pack(), moved_q)
    np.testing.assert_allclose(
        after, before - problem.data.num_rows * np.log(c).sum(), rtol=1e-5
    )  # the data are stored in single precision


def patches(num_rows, size, num_components, seed=0):
    """Rows of centred components whose precisions have eigenvalues from 0.1 to 1e5, like 8 x 8
    patches of images."""
    rng = np.random.default_rng(seed)
    sd = np.geomspace(1e-5, 10, size) ** 0.5
    bases = [np.linalg.qr(rng.normal(size=(size, size)))[0] * sd for _ in range(num_components)]
    return np.stack([bases[i % num_components] @ rng.normal(size=size) for i in range(num_rows)])


@pytest.mark.slow
def test_patches_in_single_precision():
    """D = 64, K = 50, precisions from 0.1 to 1e5, in float32: the bound rises over CAVI's sweeps,
    q's mean, mode and draws are finite, and two chains of gibbs run side by side without locking up
    the thread pool (see `families._each`).

    The rows' log densities at CAVI's q, from the same natural parameters, agree with float64 to 0.5
    % of their size: what float32 leaves of matrices with a condition number of 1e6.
    """
    data = pp_models.data.dense(patches(600, 64, 4))
    with jax.enable_x64(False):
        fit = inference.fit(
            "gaussian_mixture",
            data,
            "cavi",
            {"num_components": 50},
            num_epochs=5,
            tolerance=0.0,
            progress=False,
        )
        bounds, eta = (
            fit.history["bound"],
            {
                site: jax.tree.map(np.asarray, fit.posterior.natural(site))
                for site in fit.model.families
            },
        )
        assert fit.posterior.natural("components").precision.dtype == np.float32
        assert np.all(np.isfinite(bounds)) and np.all(np.diff(bounds) > -1e-5 * np.abs(bounds[1:]))
        family, last = fam.normal_wishart, jax.tree.map(jnp.asarray, eta["components"])
        for stats in (family.mean(last), family.mode(last), family.sample(jax.random.key(0), last)):
            assert all(
                np.all(np.isfinite(leaf))
                for leaf in (*stats, family.value(stats), *family.stats(family.value(stats)))
            )
        chains = inference.fit(
            "gaussian_mixture",
            data,
            "gibbs",
            {"num_components": 50},
            num_samples=4,
            num_warmup=4,
            progress=False,
        ).posterior
        assert np.all(np.isfinite(chains.draws["components"]))
    values = []
    for double in (False, True):
        with jax.enable_x64(double):
            problem = fitting.make_problem("gaussian_mixture", data, {"num_components": 50})
            stats = obj.summarise(problem.model, jax.tree.map(lambda x: jnp.asarray(x, float), eta))
            values.append(float(problem.model.log_local(problem.hyper, stats, problem.data.pack())))
    np.testing.assert_allclose(values[0], values[1], rtol=5e-3)


def test_start_is_at_rows_far_apart():
    """Three tight clusters far apart: every start has a mean in each, from a Data or from a padded
    Batch, and never at the padding."""
    rng = np.random.default_rng(0)
    centres = np.array([[50.0, 0.0], [0.0, 50.0], [-50.0, -50.0]])
    data = pp_models.data.dense(centres[np.arange(30) % 3] + rng.normal(size=(30, 2)))
    hyper = fitting.make_problem("gaussian_mixture", data, {"num_components": 3}).hyper
    for source in (data, data.pack(np.arange(30), 45)):
        for seed in range(10):
            start = fam.normal_wishart.distribution(
                gaussian_mixture.init(jax.random.key(seed), hyper, source)["components"]
            )
            nearest = np.argmin(
                np.linalg.norm(np.asarray(start.loc)[:, None] - centres, axis=2), axis=1
            )
            assert sorted(nearest) == [0, 1, 2] and np.abs(start.loc).max(1).min() > 20
            np.testing.assert_allclose(start.df, hyper.nu + 10)


@pytest.mark.slow
def test_defaults_follow_the_data():
    """nu = D + 2; the prior's mean is the data's, its expected covariance has their variances over
    K^(2/D); a constant column is no trouble."""
    x = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 5.0, 0.0] + [0.0, 2.0, 7.0]
    hyper = fitting.make_problem(
        "gaussian_mixture", pp_models.data.dense(x), {"num_components": 8}
    ).hyper
    assert hyper.nu == 5
    np.testing.assert_allclose(hyper.mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(hyper.scale[:2], x.var(0)[:2] / 4, rtol=1e-5)
    assert hyper.scale[2] > 0
    fit = inference.fit(
        "gaussian_mixture",
        pp_models.data.dense(x),
        "cavi",
        {"num_components": 8},
        num_epochs=5,
        progress=False,
    )
    assert np.all(np.isfinite(fit.posterior.mean("components")))


def test_means_and_covariances(problem):
    """They are the parameters of the Gaussian that rows of a component are drawn from."""
    drawn = model.simulate(problem.model, problem.hyper, problem.data.pack(), jax.random.key(2))
    value = drawn["components"]
    assert (
        value.shape
        == model.value_shapes(problem.model, problem.hyper, problem.data)["components"]
        == (2, 3, 2)
    )
    np.testing.assert_array_equal(gaussian_mixture.means(drawn), value[:, 0])
    np.testing.assert_allclose(
        gaussian_mixture.covariances(drawn) @ value[:, 1:],
        np.broadcast_to(np.eye(2), (2, 2, 2)),
        atol=1e-9,
    )


def test_components_are_aligned(problem):
    """Every draw relabelled on its own: alignment by means and precisions together gives the draws
    back."""
    rng = np.random.default_rng(0)
    start = problem.model.init(jax.random.key(0), problem.hyper, problem.data)["components"]
    one = np.asarray(fam.normal_wishart.value(fam.normal_wishart.mean(start)))
    draws = {
        "pi": rng.dirichlet([5, 3], 20),
        "components": one + 0.01 * rng.normal(size=(20, *one.shape)),
    }
    order = np.argsort(rng.random((20, 2)), 1)
    assert len(np.unique(order[:, 0])) == 2
    aligned = align.align_draws(
        problem.model,
        align.permute(problem.model, draws, order),
        {"pi": np.array([0.6, 0.4]), "components": one},
    )
    for site, value in draws.items():
        np.testing.assert_array_equal(aligned[site], value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("gaussian_mixture", marks=pytest.mark.slow), "bernoulli_mixture"]
)
def test_mixtures_can_be_compared(name):
    """A comparison judges CAVI on every expected observation, of which a mixture has one per
    column, and on all its sites."""
    options = {"gibbs": {"num_samples": 100, "num_warmup": 50}, "cavi": {"num_epochs": 20}}
    result = compare.compare(name, engines=["cavi"], options=options, progress=False, num_draws=100)
    row = result.summary["engines"]["cavi"]
    assert (
        row["error"] is None
        and row["invariant"]["expected data"]["quantities"] == result.data.num_columns
    )
    assert all(part["mean_error_sd"] is not None for part in row["sites"].values()) and set(
        row["sites"]
    ) == set(result.model.families)
    assert row["khat"] is not None and np.isfinite(row["khat"])
    assert np.isfinite(row["heldout"])  # of rows that no site belongs to


@pytest.mark.parametrize(
    ("hyper", "words"),
    [
        ({"nu": 2.0}, "nu must be above the number of columns, 2"),
        ({"kappa": 0.0}, "kappa must be positive"),
        ({"concentration": [1.0, 2.0]}, "concentration must be one number"),
        (
            {"mean": [1.0, 2.0, 3.0]},
            "mean must be one finite number, or one for each of the 2 columns",
        ),
        ({"mean": float("nan")}, "mean must be one finite number"),
        ({"scale": [1.0, -1.0]}, "scale must be positive"),
        (
            {"scale": [1.0, 1.0, 1.0]},
            "scale must be one finite number, or one for each of the 2 columns",
        ),
        ({"num_components": 0}, "num_components must be a whole number"),
    ],
)
def test_bad_input(problem, hyper, words):
    with pytest.raises(InputError, match=words):
        fitting.make_problem("gaussian_mixture", problem.data, hyper)
