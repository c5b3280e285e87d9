"""The correlated topic model: its two priors agree where they should, its bound is one, and
correlations are found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import inference
import pp_models
from inference.core import align
from inference.core import objective as obj
from inference.run import fit as fitting
from pp_models import families as fam
from pp_models import model
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError

CTM = pp_models.load("ctm")


def make(**changes):
    hyper, data = CTM.example(jax.random.key(0))
    return fitting.make_problem(
        "ctm", data, hyper._replace(**changes), devices=jax.local_devices()[:1]
    )


@pytest.fixture(scope="module")
def both():
    """The same documents under both priors, with as many dimensions as topics."""
    return make(), make(prior="locations", rank=3)


def points(rng, num_rows):
    """Locations of three topics in three dimensions, of the documents, and topics."""
    return (
        jnp.asarray(rng.normal(size=(3, 3))),
        jnp.asarray(rng.normal(size=(num_rows, 3))),
        jnp.log(rng.dirichlet(np.ones(9), 3)),
    )


def test_the_two_priors_agree_given_the_covariance(both):
    """y = ell u with C = ell ell': the rows' densities differ by |det ell|, and nothing else."""
    ell, u, log_beta = points(np.random.default_rng(0), both[0].data.num_rows)
    precision = jnp.linalg.inv(ell @ ell.T)
    sites = [
        {
            "y": fam.normal.stats(u @ ell.T),
            "precision": fam.wishart.stats(precision),
            "beta": log_beta,
        },
        {"u": fam.normal.stats(u), "ell": fam.point.stats(ell), "beta": log_beta},
    ]
    one, other = (
        p.model.log_local(p.hyper, t, p.data.pack()) for p, t in zip(both, sites, strict=True)
    )
    np.testing.assert_allclose(one, other - len(u) * jnp.linalg.slogdet(ell)[1], rtol=1e-10)


def test_map_climbs():
    """Also where a site, the covariance, has one row only. 1e-9 of a bound of about 1e2:
    rounding."""
    problem = make()
    bound = inference.fit(
        "ctm", problem.data, "map", problem.hyper, num_epochs=4, tolerance=0
    ).history["bound"]
    assert len(bound) == 4 and np.all(np.diff(bound) > -1e-7) and bound[-1] > bound[0]


def test_the_two_priors_bound_the_same_sum(both):
    """With C = I and the unit vectors for places, y is u: of one q, its covariances included, both
    forms' F is the same number."""
    rng = np.random.default_rng(0)
    _, mean, log_beta = points(rng, both[0].data.num_rows)
    factor = jnp.asarray(rng.normal(size=(len(mean), 3, 3)))
    q = fam.Pair(mean, mean[:, :, None] * mean[:, None] + factor @ jnp.swapaxes(factor, 1, 2))
    sites = [
        {"y": q, "precision": fam.wishart.stats(jnp.eye(3)), "beta": log_beta},
        {"u": q, "ell": fam.point.stats(jnp.eye(3)), "beta": log_beta},
    ]
    one, other = (
        p.model.log_local(p.hyper, t, p.data.pack()) for p, t in zip(both, sites, strict=True)
    )
    np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.parametrize("summary", ["mean", pytest.param("mode", marks=pytest.mark.slow)])
def test_the_two_priors_give_documents_the_same_proportions(both, summary):
    """Solved with the covariance given, q(y) is q(u) mapped by ell: mean ell m and covariance ell S
    ell' (1e-6: the solver's rest)."""
    ell, _, log_beta = points(np.random.default_rng(1), 0)
    shared = [
        {"precision": fam.wishart.stats(jnp.linalg.inv(ell @ ell.T)), "beta": log_beta},
        {"ell": fam.point.stats(ell), "beta": log_beta},
    ]
    found = []
    for problem, t in zip(both, shared, strict=True):
        batch = problem.data.pack()
        start = obj.start_local(problem.model, problem.hyper, batch, summary)
        program = jax.jit(
            lambda p=problem, t=t, b=batch, s=start: p.model.solve_local(
                p.hyper, t, b, s, RowOptions(200, 0.0), summary
            )[0]
        )
        found.append(fam.normal_moments(next(iter(program().values()))))
    np.testing.assert_allclose(found[0][0], found[1][0] @ ell.T, atol=1e-6)
    np.testing.assert_allclose(found[0][1], ell @ found[1][1] @ ell.T, atol=1e-6)


@pytest.mark.slow
def test_precision_gets_the_conjugate_update():
    """Given documents' y, C is inverse Wishart with degrees m + D and scale A + sum_d E[y y'] (P
    11.4)."""
    problem = make()
    fit = inference.fit(
        "ctm",
        problem.data,
        "cavi",
        problem.hyper,
        num_epochs=3,
        progress=False,
        devices=problem.devices,
    )
    natural = {site: fit.posterior.natural(site) for site in CTM.families}
    batch = problem.data.pack()
    target = jax.jit(jax.grad(lambda t: model.joint(CTM, problem.hyper, t, batch)))(
        obj.summarise(CTM, natural)
    )["precision"]
    distribution = fam.wishart.distribution(target)
    np.testing.assert_allclose(
        distribution.concentration, problem.hyper.degrees + problem.data.num_rows, rtol=1e-12
    )
    second = fam.normal.mean(natural["y"]).second
    np.testing.assert_allclose(
        -2 * target.second, problem.hyper.scale * np.eye(3) + second.sum(0), rtol=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["inverse_wishart", "locations"])
def test_bound_is_below_the_expected_density(prior):
    """The log of the expected sum stands for the expected log: the bound is no higher than E_q[log
    p - log q] by 4,000 draws (five errors)."""
    problem = make(prior=prior)
    fit = inference.fit(
        "ctm",
        problem.data,
        "cavi",
        problem.hyper,
        num_epochs=30,
        progress=False,
        devices=problem.devices,
    )
    draws = fit.posterior.sample(jax.random.key(0), 4000)
    batch = problem.data.pack()
    density = jax.jit(
        jax.vmap(lambda values: model.log_joint(problem.model, problem.hyper, values, batch))
    )
    gaps = np.asarray(density(jax.tree.map(jnp.asarray, draws))) - fit.posterior.log_density(draws)
    assert fit.bound < gaps.mean() + 5 * gaps.std() / np.sqrt(len(gaps))


def test_points_have_the_softmax_gradient():
    """With S = 0, d/dy is counts - N theta - C^-1 y: target.first + 2 target.second y."""
    problem = make()
    ell, u, log_beta = points(np.random.default_rng(2), problem.data.num_rows)
    y, precision = u @ ell.T, jnp.linalg.inv(ell @ ell.T + jnp.eye(3))
    t = {"y": fam.normal.stats(y), "precision": fam.wishart.stats(precision), "beta": log_beta}
    batch = problem.data.pack()
    target = jax.jit(jax.grad(lambda y: CTM.log_local(problem.hyper, {**t, "y": y}, batch)))(t["y"])
    X = problem.data.matrix.toarray()
    shares = jax.nn.softmax(y[:, None, :] + log_beta.T[None], -1)
    expected = (
        jnp.einsum("dv,dvk->dk", X, shares)
        - X.sum(1)[:, None] * jax.nn.softmax(y, -1)
        - y @ precision
    )
    np.testing.assert_allclose(
        target.first + 2 * (target.second @ y[..., None])[..., 0], expected, rtol=1e-8, atol=1e-9
    )


@pytest.mark.slow
def test_topic_tools_read_both_forms(both):
    """Proportions sum to one, and times the topics they are the predicted words at the posterior's
    means."""
    for problem in both:
        fit = inference.fit(
            "ctm",
            problem.data,
            "cavi",
            problem.hyper,
            num_epochs=3,
            progress=False,
            devices=problem.devices,
        )
        found = inference.topics(fit)
        np.testing.assert_allclose(found.proportions.sum(1), 1)
        values = {site: fit.posterior.mean(site) for site in fit.model.families}
        np.testing.assert_allclose(
            found.proportions @ found.topics,
            problem.model.predict(problem.hyper, values),
            rtol=1e-6,
        )


def test_bad_values_are_refused():
    """One sentence each; redundant dimensions only warn, and only where there are locations."""
    data = make().data
    for bad, match in (
        ({"prior": "wishart"}, "Unknown prior"),
        ({"degrees": 1.0}, "degrees must be above num_topics - 1, here 2"),
        ({"scale": -1.0}, "scale"),
        ({"eta": 0.0}, "eta"),
        ({"rank": -1}, "rank"),
        ({"sigma2": 0.0, "prior": "locations"}, "sigma2"),
    ):
        with pytest.raises(InputError, match=match):
            fitting.make_problem("ctm", data, {"num_topics": 3, **bad})
    with pytest.warns(UserWarning, match="2 dimensions are redundant"):
        fitting.make_problem("ctm", data, {"num_topics": 3, "rank": 5, "prior": "locations"})
    fitting.make_problem("ctm", data, {"num_topics": 3, "rank": 5})


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["inverse_wishart", "locations"])
def test_planted_correlations_are_found(prior):
    """Topics that go together or avoid each other do so in C (or ell ell'), by sign; topics have
    words of their own."""
    rng = np.random.default_rng(0)
    places = 1.5 * np.array([[1, 0], [0.9, 0.44], [-1, 0], [0, -1]])
    weights = np.exp(rng.normal(size=(500, 2)) @ places.T)
    topics = 0.9 * np.kron(np.eye(4), np.full((1, 10), 0.1)) + 0.1 / 40
    X = np.array([rng.multinomial(80, p) for p in weights / weights.sum(1, keepdims=True) @ topics])
    data = pp_models.data.counts(X)
    options = {"num_topics": 4, "prior": prior, "rank": 2}
    fit = inference.fit("ctm", data, "cavi", options, num_epochs=150, progress=False)
    correlations = inference.topic_correlations(fit)
    order = align.topic_order(topics, fit.posterior.mean("beta"))
    centred = np.eye(4) - 1 / 4  # proportions do not see a shift of all topics
    found, true = (
        centred @ c @ centred
        for c in (correlations[np.ix_(order, order)], inference.topic_correlations(places))
    )
    np.testing.assert_array_equal(np.sign(found), np.sign(true))
