"""Linear response where it is known: a Gaussian model, eliminated auxiliaries; and saddles."""

import jax
import jax.numpy as jnp
import numpy as np

import pp_models
from inference.core import climb
from inference.core import linear_response as lr
from pp_models import families as fam
from pp_models.families import Pair
from pp_models.model import declare
from pp_models.model.capabilities import Rotation

USERS, ITEMS = 4, 6


class FixedItems:
    """PMF with its items' factors known, and q a product over the users' two coordinates."""

    families = {"a": fam.normal, "b": fam.normal}  # noqa: RUF012
    shared, local, rotation = ("a", "b"), frozenset(), Rotation()

    def __init__(self):
        rng = np.random.default_rng(0)
        rated = rng.random((USERS, ITEMS)) < 0.7
        user, item = np.nonzero(rated)
        ratings = pp_models.data.ratings(user, item, rng.normal(size=len(user)), shape=rated.shape)
        given = {"rank": 2, "lam": 0.7, "sigma2": 0.4, "center": False, "offset": 0.0}
        self.model, self.hyper = declare(pp_models.load("pmf"), given, ratings)
        self.batch, self.rated = ratings.pack(), rated
        self.items = jnp.asarray(rng.normal(size=(ITEMS, 2)))

    def log_global(self, hyper, t):
        return jnp.zeros(())

    def log_local(self, hyper, t, batch, key=None):
        first = jnp.concatenate([t["a"].first, t["b"].first], 1)
        cross = (t["a"].first * t["b"].first)[:, :, None]
        rows = [jnp.concatenate(x, 2) for x in ((t["a"].second, cross), (cross, t["b"].second))]
        stats = {"u": Pair(first, jnp.concatenate(rows, 1)), "v": fam.normal.stats(self.items)}
        return self.model.log_local(self.hyper, stats, self.batch)

    def covariance(self):
        """Of the posterior, (site, user, site, user): a ridge regression for each user."""
        items, hyper = np.asarray(self.items), self.hyper
        whole = np.zeros((2, USERS, 2, USERS))
        for user, own in enumerate(self.rated):
            precision = hyper.lam * np.eye(2) + items[own].T @ items[own] / hyper.sigma2
            whole[:, user, :, user] = np.linalg.inv(precision)
        return whole


def test_pmf_with_known_items_is_exact():
    """The posterior of users given the items is normal, and linear response has its covariance, to
    rounding, 1e-8, from a q that ignores the correlation of a user's coordinates.
    """
    model, begin = FixedItems(), Pair(jnp.ones((USERS, 1)), -0.5 * jnp.ones((USERS, 1, 1)))
    place = lr.place_at(model, model.hyper, {"a": begin, "b": begin}, None)
    place = climb.climb(model, place, settled=1e-9).place
    rights = jax.tree.map(lambda x: jnp.zeros((2, USERS, *x.shape)), place.mean)
    for i, site in enumerate("ab"):
        units = jnp.eye(USERS)[:, :, None]
        rights[site] = rights[site]._replace(first=rights[site].first.at[i].set(units))
    rights = jax.tree.map(lambda x: x.reshape(2 * USERS, *x.shape[2:]), rights)
    shift = lr.respond(model, place, rights, 1e-12).shift
    found = np.stack([shift[site].first[:, :, 0] for site in "ab"], 1)
    exact = model.covariance()
    np.testing.assert_allclose(found.reshape(exact.shape), exact, rtol=0, atol=1e-8)
    for i, site in enumerate("ab"):
        narrow = 1 / (-2 * np.asarray(place.natural[site].second)[:, 0, 0])
        assert np.all(narrow < 0.99 * np.diag(exact[i, :, i, :]))


def test_eliminated_allocations_respond():
    """F'' of LDA has the response of the tokens' allocations to topics and proportions: the
    difference of dF/dmu, of which central differences of 1e-5 leave an error of about 1e-8.
    """
    data = pp_models.data.counts(np.random.default_rng(1).poisson(2.0, (3, 4)))
    model, hyper = declare(pp_models.load("lda"), {"num_topics": 2}, data)
    keys = dict(zip(model.families, jax.random.split(jax.random.key(0)), strict=True))
    shapes = {"theta": (3, 2), "beta": (2, 4)}
    natural = {s: 1.0 + jax.random.exponential(keys[s], x) for s, x in shapes.items()}
    place = lr.place_at(model, hyper, natural, data.pack())
    change = {s: jax.random.normal(jax.random.key(1), x) for s, x in shapes.items()}

    def slope(step):
        moved = jax.tree.map(lambda m, c: m + step * c, place.mean, change)
        return lr.gradient(model, place, moved)

    found = jax.jit(lambda: (lr.curvature(model, place, change), slope(1e-5), slope(-1e-5)))()
    for site in model.families:
        bent, after, before = (np.asarray(x[site]) for x in found)
        assert np.abs(bent).max() > 0.1
        np.testing.assert_allclose(bent, (after - before) / 2e-5, atol=1e-6)


class Ridge:
    """F whose bound has two maxima, at a = b = +-m, and a saddle at zero."""

    families = {"a": fam.normal, "b": fam.normal}  # noqa: RUF012
    shared, local, rotation = ("a", "b"), frozenset(), Rotation()

    def log_global(self, hyper, t):
        return -0.05 * sum(jnp.sum(t[s].second) for s in "ab")

    def log_local(self, hyper, t, batch, key=None):
        product = t["a"].first * t["b"].first
        squares = t["a"].second[:, 0, 0] * t["b"].second[:, 0, 0]
        return jnp.sum(2.0 * product) - 0.5 * jnp.sum(squares)


def test_a_climb_leaves_a_saddle():
    """From near the saddle, where precisions are 1.05 and the slope is small, the bound rises along
    a direction in which it is not concave.
    """
    model, eye = Ridge(), jnp.ones((1, 1, 1))
    natural = {site: Pair(jnp.full((1, 1), 1e-2), -0.525 * eye) for site in "ab"}
    ascent = climb.climb(model, lr.place_at(model, None, natural, None))
    assert ascent.is_maximum
    assert ascent.gain > 0.1
    assert abs(float(ascent.place.mean["a"].first[0, 0])) > 0.5
