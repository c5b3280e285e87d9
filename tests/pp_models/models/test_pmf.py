"""Probabilistic matrix factorisation: C17's updates, users with few ratings or none, and
predictions with their uncertainty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import inference
import pp_models
from inference.core import align
from inference.evaluation.ratings import predict_ratings, score_ratings, split_ratings
from inference.run import end_checks
from inference.run.fit import make_problem
from pp_models import InputError
from pp_models import families as fam
from pp_models import model as base
from pp_models.models import _spectral


def planted(num_users=60, num_items=40, rank=2, share=0.5, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=(num_users, rank)), rng.normal(size=(num_items, rank))
    users, items = np.nonzero(rng.random((num_users, num_items)) < share)
    values = 3 + np.sum(u[users] * v[items], 1) + noise * rng.normal(size=len(users))
    return pp_models.data.ratings(users, items, values, shape=(num_users, num_items))


def sparse_users():
    """User 0 has no rating, user 1 one, fewer than the rank; item 3 has none."""
    rng = np.random.default_rng(1)
    users, items = np.nonzero(rng.random((8, 6)) < 0.6)
    keep = (users > 1) & (items != 3)
    users, items = np.append(users[keep], 1), np.append(items[keep], 0)
    return pp_models.data.ratings(users, items, rng.normal(size=len(users)), shape=(8, 6))


def test_a_sweep_of_map_is_ridge_regression():
    """C17: given v, each u_i is scikit-learn's Ridge on that user's ratings, and given those u each
    v_j is (1e-6)."""
    linear = pytest.importorskip("sklearn.linear_model")
    data = sparse_users()
    hyper = {"rank": 3, "lam": 0.7, "sigma2": 0.5, "center": False}
    start = jax.random.normal(jax.random.key(1), (6, 3))
    fit = inference.fit("pmf", data, "map", hyper, init={"v": start}, num_epochs=1, progress=False)
    u, v = fit.posterior.mean("u"), fit.posterior.mean("v")
    table = data.matrix.toarray()
    seen = np.zeros_like(table, bool)
    seen[data.matrix.tocoo().coords] = True

    def ridge(x, y):
        return (
            linear.Ridge(alpha=0.7 * 0.5, fit_intercept=False).fit(x, y).coef_
            if len(y)
            else np.zeros(3)
        )

    for i in range(8):
        np.testing.assert_allclose(
            u[i], ridge(np.asarray(start)[seen[i]], table[i, seen[i]]), rtol=1e-6, atol=1e-9
        )
    for j in range(6):
        np.testing.assert_allclose(
            v[j], ridge(u[seen[:, j]], table[seen[:, j], j]), rtol=1e-6, atol=1e-9
        )


def precise(share, seed=0):
    """Ratings of rank 2 whose noise has sd 0.05."""
    return planted(100, 60, share=share, noise=0.05, seed=seed)


@pytest.mark.parametrize("share", [0.4, 0.15])
def test_no_start_ends_far_from_the_planted_ratings(share):
    """From random locations one start in six, and with nine ratings a user most, ended with errors
    of several times the ratings' sd. The least error that a perfect answer has is 0.05."""
    train, held = split_ratings(precise(share), 0.1)
    for seed in range(4):
        hyper, key = {"rank": 2, "sigma2": 0.0025}, jax.random.key(seed)
        fit = inference.fit("pmf", train, "cavi", hyper, key, num_epochs=40, progress=False)
        assert score_ratings(fit, held).rmse < 0.25, seed


def test_starts_differ_and_cost_no_more_than_their_work():
    """Keys give different starts. All ratings equal, more factors than columns, one rating."""
    model, data = pp_models.load("pmf"), precise(0.4)
    hyper = make_problem("pmf", data, {"rank": 2}).hyper
    one, other = (model.init(jax.random.key(k), hyper, data)["v"].first for k in (0, 1))
    assert float(jnp.max(jnp.abs(one - other))) > 0.1 * float(jnp.std(one))
    for values, rank in (([3.0, 3.0, 3.0], 2), ([1.0, 2.0, 4.0], 5), ([1.0], 3)):
        users, items = np.arange(len(values)), np.arange(len(values)) % 2
        few = pp_models.data.ratings(users, items, values, shape=(3, 2))
        v = model.init(jax.random.key(0), make_problem("pmf", few, {"rank": rank}).hyper, few)["v"]
        assert v.first.shape == (2, rank) and np.all(np.isfinite(v.first))
    assert _spectral.effort(10_000, 5) == (4, 10)
    assert _spectral.effort(10**8, 50) == (1, 0)


def test_predictions_worse_than_the_mean_are_said(recwarn):
    """Locations three times as long as the best ones, from a run of no steps: over all cells the
    predictions exceed the ratings by several of their standard deviations."""
    data = precise(0.4)
    fit = inference.fit("pmf", data, "map", {"rank": 2}, num_epochs=5, progress=False)
    assert not [x for x in recwarn if "mean rating" in str(x.message)]
    fit.posterior.values = {site: 3 * fit.posterior.mean(site) for site in "uv"}
    with pytest.warns(UserWarning, match="pmf predicts worse than the mean rating: over all cells"):
        end_checks.warn_of_answer(fit.posterior)


@pytest.mark.slow
def test_every_half_sweep_raises_the_objective():
    """C17's objective never falls, neither by the users' update nor by the items'."""
    data = planted()
    problem = make_problem("pmf", data, {"rank": 3})
    batch, hyper = data.pack(), problem.hyper
    v = jax.random.normal(jax.random.key(0), (40, 3))
    heights = []
    for _ in range(5):
        after = inference.fit(
            "pmf", data, "map", {"rank": 3}, init={"v": v}, num_epochs=1, progress=False
        ).posterior
        u = jnp.asarray(after.mean("u"))
        heights.append(base.log_joint(problem.model, hyper, {"u": u, "v": v}, batch))
        v = jnp.asarray(after.mean("v"))
        heights.append(base.log_joint(problem.model, hyper, {"u": u, "v": v}, batch))
    assert np.all(np.diff(heights) > 0)


def test_later_blocks_see_the_earlier_ones_of_the_sweep():
    """After one sweep of cavi, q(tau) has half the expected squared error of this sweep's own q(u)
    and q(v) in its rate, not of the last one's."""
    hyper, data = pp_models.load("bayesian_pmf").example(jax.random.key(0))
    fit = inference.fit(
        "bayesian_pmf", data, "cavi", hyper, jax.random.key(1), num_epochs=1, progress=False
    )
    first, second = (
        {site: getattr(fam.normal.mean(fit.posterior.natural(site)), part) for site in "uv"}
        for part in ("first", "second")
    )
    entries = data.matrix.tocoo()
    user, item = entries.coords
    rating = entries.data - fit.hyper.offset
    products = jnp.sum(first["u"][user] * first["v"][item], 1)
    error = jnp.sum(
        rating**2 - 2 * rating * products + jnp.sum(second["u"][user] * second["v"][item], (1, 2))
    )
    np.testing.assert_allclose(-fit.posterior.natural("tau").second, hyper.b + error / 2, rtol=1e-6)


@pytest.mark.parametrize("engine", ["cavi", pytest.param("gibbs", marks=pytest.mark.slow), "map"])
def test_who_rated_nothing_has_the_prior(engine):
    """No rating, no information: mean 0 and variance 1/lam (draws: within 5 standard errors of 400
    at least)."""
    options = {"num_samples": 800, "num_warmup": 100} if engine == "gibbs" else {"num_epochs": 20}
    fit = inference.fit(
        "pmf",
        sparse_users(),
        engine,
        {"rank": 3, "lam": 0.7, "sigma2": 0.5},
        progress=False,
        **options,
    )
    for site, row in (("u", 0), ("v", 3)):
        mean, sd = fit.posterior.mean(site)[row], fit.posterior.sd(site)[row]
        if engine == "map":
            np.testing.assert_allclose(mean, 0, atol=1e-12)
        else:
            wide = 5 / np.sqrt(400) if engine == "gibbs" else 1e-9
            np.testing.assert_allclose(mean * np.sqrt(0.7), 0, atol=wide)
            np.testing.assert_allclose(sd * np.sqrt(0.7), 1, atol=wide)
    assert np.all(np.isfinite(fit.posterior.mean("u")))


@pytest.mark.slow
def test_predictive_moments_are_those_of_draws():
    """Mean and sd of a mean-field prediction against 20,000 draws of u, v and the noise: five
    standard errors, 0.035 sd and 2.5 %."""
    data = planted()
    fit = inference.fit("pmf", data, "cavi", {"rank": 2}, num_epochs=30, progress=False)
    users, items = np.array([0, 5, 59]), np.array([3, 39, 0])
    found = predict_ratings(fit, users, items)
    draws = fit.posterior.sample(jax.random.key(0), 20_000)
    noise = np.sqrt(float(fit.hyper.sigma2)) * np.random.default_rng(0).normal(size=(20_000, 3))
    values = (
        float(fit.hyper.offset) + np.sum(draws["u"][:, users] * draws["v"][:, items], -1) + noise
    )
    assert np.all(np.abs(values.mean(0) - found.mean) < 0.035 * found.sd)
    np.testing.assert_allclose(values.std(0), found.sd, rtol=0.025)
    inside = (values > found.lower) & (values < found.upper)
    np.testing.assert_allclose(
        inside.mean(0), 0.9, atol=0.02
    )  # a product of normals is not quite normal


def test_predictions_on_a_scale():
    """Clipped to the scale and rounded to its steps, on request."""
    fit = inference.fit("pmf", planted(), "map", {"rank": 2}, num_epochs=20, progress=False)
    users, items = np.divmod(np.arange(60 * 40), 40)
    free, scaled = (
        predict_ratings(fit, users, items),
        predict_ratings(fit, users, items, limits=(1.0, 5.0), step=0.5),
    )
    assert free.mean.min() < 1 and free.mean.max() > 5
    assert set(np.unique(scaled.mean)) == set(np.arange(1, 5.5, 0.5))
    inside = (free.mean > 1) & (free.mean < 5)
    assert np.abs(scaled.mean - free.mean)[inside].max() <= 0.25 + 1e-6
    assert scaled.lower.min() >= 1 and scaled.upper.max() <= 5


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("map", {"num_epochs": 50}),
        ("cavi", {"num_epochs": 50}),
        pytest.param("trust_region", {"batch_size": 20, "num_epochs": 30}, marks=pytest.mark.slow),
        pytest.param("gibbs", {"num_samples": 300, "num_warmup": 100}, marks=pytest.mark.slow),
        pytest.param("laplace", {}, marks=pytest.mark.slow),
    ],
)
def test_engines_predict_held_out_ratings(engine, options):
    """Noise of sd 0.3 in ratings of sd 1.4: every engine predicts below 0.5, and the distributions'
    intervals hold nine in ten.

    Of 140 ratings that share has a standard error of 0.025.
    """
    train, heldout = split_ratings(planted(share=0.6), 0.1)
    assert train.num_entries + heldout.num_entries == planted(share=0.6).num_entries
    fit = inference.fit(
        "pmf", train, engine, {"rank": 2, "lam": 1.0, "sigma2": 0.09}, progress=False, **options
    )
    score = score_ratings(fit, heldout)
    assert score.rmse < 0.5, engine
    if engine in ("cavi", "gibbs", "laplace"):
        assert abs(score.coverage - 0.9) < 0.06, (engine, score)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cavi", "gibbs"])
def test_priors_of_priors_find_the_noise(engine):
    """bayesian_pmf, not told the noise's sd, finds 0.3 (posterior mean within 10 %), by CAVI and by
    Gibbs."""
    options = {"num_samples": 300, "num_warmup": 200} if engine == "gibbs" else {"num_epochs": 60}
    fit = inference.fit(
        "bayesian_pmf", planted(share=0.7), engine, {"rank": 2}, progress=False, **options
    )
    np.testing.assert_allclose(fit.posterior.mean("tau")[0] ** -0.5, 0.3, rtol=0.1)


def test_offsets():
    """Centring subtracts the mean rating; an offset given is used; without either it is zero."""
    data = planted()
    make = make_problem
    assert make("pmf", data, {}).hyper.offset == pytest.approx(data.matrix.data.mean(), rel=1e-6)
    assert make("pmf", data, {"center": False}).hyper.offset == 0
    assert make("pmf", data, {"offset": 2}).hyper.offset == 2
    for options in ({}, {"center": False}, {"offset": 1.0}):
        hyper = make("pmf", data, {"rank": 8, **options}).hyper
        square = np.mean((data.matrix.data.astype(float) - hyper.offset) ** 2)
        np.testing.assert_allclose(hyper.sigma2 + 8 / hyper.lam**2, square, rtol=1e-5)


def test_an_offset_is_taken_off_on_both_sides():
    """F and its gradients, the users' and the items', are those of ratings from which it was
    subtracted beforehand."""
    model = pp_models.load("pmf")
    hyper, data = model.example(jax.random.key(0))
    entries = data.matrix.tocoo()
    shifted = pp_models.data.ratings(
        *entries.coords, entries.data + 2, shape=data.matrix.shape
    )  # exact in single precision, nearly
    rng = np.random.default_rng(0)
    t = {
        site: fam.normal.stats(jnp.asarray(rng.normal(size=(size, 2))))
        for site, size in (("u", data.num_rows), ("v", data.num_columns))
    }

    def height(data, offset):
        return jax.value_and_grad(
            lambda t: model.log_local(hyper._replace(offset=offset), t, data.pack())
        )(t)

    for a, b in zip(
        jax.tree.leaves(height(shifted, 3.0)), jax.tree.leaves(height(data, 1.0)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_few_ratings_and_a_weak_prior_in_single_precision():
    """Users with fewer ratings than the rank have precisions whose condition is beyond single
    precision when the prior is weak: fits stay finite."""
    with jax.enable_x64(False):
        data = planted(num_users=30, num_items=20, share=0.25)
        for engine in ("map", "cavi"):
            fit = inference.fit(
                "pmf",
                data,
                engine,
                {"rank": 10, "lam": 1e-6, "sigma2": 0.1},
                num_epochs=5,
                progress=False,
            )
            assert np.all(np.isfinite(fit.history["bound"])) and np.all(
                np.isfinite(fit.posterior.mean("u"))
            ), engine


@pytest.mark.slow
def test_the_noise_is_learned():
    """Empirical Bayes finds the planted noise, sd 0.3, from a start at sd 1.5 (within 10 %)."""
    hyper = {"rank": 2, "lam": 1.0, "sigma2": ("learn", 2.25)}
    fit = inference.fit(
        "pmf", planted(share=0.7), "svi", hyper, batch_size=30, num_epochs=100, progress=False
    )
    np.testing.assert_allclose(float(fit.hyper.sigma2) ** 0.5, 0.3, rtol=0.1)


@pytest.mark.slow
def test_densities_of_draws_are_mixtures():
    """The log density of a held-out rating is that of the mean over draws of p(rating | draw), not
    of the moments' normal."""
    train, heldout = split_ratings(planted(), 0.1)
    fit = inference.fit(
        "pmf",
        train,
        "gibbs",
        {"rank": 2},
        num_samples=50,
        num_warmup=50,
        num_chains=2,
        progress=False,
    )
    cells = heldout.matrix.tocoo()
    draws = {site: x.reshape(-1, *x.shape[2:]) for site, x in fit.posterior.draws.items()}
    means = float(fit.hyper.offset) + np.sum(
        draws["u"][:, cells.coords[0]] * draws["v"][:, cells.coords[1]], -1
    )
    expected = np.log(norm.pdf(cells.data, means, np.sqrt(float(fit.hyper.sigma2))).mean(0)).mean()
    np.testing.assert_allclose(score_ratings(fit, heldout).log_density, expected, rtol=1e-8)


@pytest.fixture(scope="module")
def point():
    return inference.fit("pmf", planted(), "map", {"rank": 2}, num_epochs=2, progress=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda fit, data: predict_ratings(fit, [0, 1], [0]), "equal length"),
        (lambda fit, data: predict_ratings(fit, [60], [0]), "users must lie between 0 and 59"),
        (lambda fit, data: predict_ratings(fit, [0], [-1]), "items must lie between 0 and 39"),
        (
            lambda fit, data: predict_ratings(fit, [0], [1], interval=90),
            "interval must be a probability",
        ),
        (
            lambda fit, data: predict_ratings(fit, [0], [1], limits=(5, 1)),
            "limits must be the lowest and the highest",
        ),
        (lambda fit, data: predict_ratings(fit, [0], [1], step=1), "needs limits"),
        (lambda fit, data: predict_ratings(fit, [], []), "whole numbers"),
        (
            lambda fit, data: predict_ratings(fit, np.zeros(0, int), np.zeros(0, int)),
            "nothing to predict",
        ),
        (
            lambda fit, data: predict_ratings(fit, [0], [1], limits=5),
            "limits must be the lowest and the highest",
        ),
        (
            lambda fit, data: predict_ratings(fit, [0], [1], num_draws=0),
            "num_draws must be at least 1",
        ),
        (
            lambda fit, data: score_ratings(fit, data, limits=(5, 1)),
            "limits must be the lowest and the highest",
        ),
        (lambda fit, data: score_ratings(fit, [1.0]), "needs held-out ratings"),
        (
            lambda fit, data: make_problem("pmf", data, {"lam": [1.0, 2.0]}),
            "lam must be one number",
        ),
        (
            lambda fit, data: make_problem("pmf", data, {"center": "no"}),
            "center must be True or False",
        ),
        (lambda fit, data: split_ratings(data, 1.5), "share must be between 0 and 1"),
        (lambda fit, data: make_problem("pmf", data, {"rank": 0}), "rank must be a whole number"),
        (lambda fit, data: make_problem("pmf", data, {"sigma2": -1}), "sigma2 must be positive"),
        (
            lambda fit, data: make_problem("pmf", data, {"offset": float("nan")}),
            "offset must be one finite number",
        ),
        (
            lambda fit, data: make_problem("bayesian_pmf", data, {"rank": 4, "nu": 3.0}),
            "nu must be above rank - 1",
        ),
        (
            lambda fit, data: make_problem("pmf", pp_models.data.counts(np.eye(3)), {}),
            "explains ratings data",
        ),
    ],
)
def test_bad_input(point, call, words):
    """One sentence, naming what is wrong."""
    with pytest.raises(InputError, match=words):
        call(point, planted())


@pytest.mark.parametrize("name", ["pmf", pytest.param("bayesian_pmf", marks=pytest.mark.slow)])
def test_draws_are_turned_onto_each_other(name):
    """Draws turned at random come back to where they were; what does not depend on the rotation
    stays (1e-6: of single precision)."""
    model = pp_models.load(name)
    hyper, data = model.example(jax.random.key(0))
    drawn = base.simulate(
        model, base.make_hyper(model, hyper, data), data.pack(), jax.random.key(1)
    )
    pivot = {site: np.asarray(drawn[site]) for site in model.families}
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))
    turned = {**pivot, "u": pivot["u"] @ turn, "v": pivot["v"] @ turn}
    for site in {"users", "items"} & set(pivot):
        turned[site] = np.concatenate(
            [pivot[site][:, :1] @ turn, turn.T @ pivot[site][:, 1:] @ turn], 1
        )
    back = align.align_draws(model, {site: value[None] for site, value in turned.items()}, pivot)
    for site in model.families:
        np.testing.assert_allclose(back[site][0], pivot[site], rtol=1e-6, atol=1e-6)
    batch, settled = data.pack(), base.make_hyper(model, hyper, data)
    heights = [
        base.log_joint(model, settled, {s: jnp.asarray(x) for s, x in values.items()}, batch)
        for values in (pivot, turned)
    ]
    assert abs(turn[0, 0]) < 0.99
    np.testing.assert_allclose(heights[0], heights[1], rtol=1e-8)
