"""Laws of linear response, on every model: it is the inverse curvature of the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import inference
from inference.core import climb, gauge
from inference.core import linear_response as lr
from pp_models import families as fam

pytestmark = pytest.mark.costly  # programs of second derivatives take long to compile


@pytest.fixture(scope="module")
def place(problem):
    """A maximum of the bound of the model's example."""
    found = inference.fit(
        problem.model.name, problem.data, "cavi", problem.hyper, progress=False, num_epochs=200
    )
    natural = {
        site: jax.tree.map(jnp.asarray, found.posterior.natural(site))
        for site in problem.model.families
    }
    first = lr.place_at(problem.model, problem.hyper, natural, problem.data.pack())
    ascent = climb.climb(problem.model, first, settled=1e-5)
    assert ascent.is_maximum
    assert ascent.distance < 1e-5
    assert ascent.gain >= 0
    # Rises of the bound that are lost in its rounding still matter where it is flat.
    return newton(problem.model, ascent.place, 2)


def newton(model, place, number, tilt=None):
    """Whole Newton steps towards the maximum of the bound, or of the bound plus a tilt of F."""
    for _ in range(number):
        target = lr.gradient(model, place, place.mean)
        if tilt is not None:
            target = jax.tree.map(jnp.add, target, tilt)
        slope = lr.without_points(model, jax.tree.map(jnp.subtract, target, place.natural))
        found = lr.respond(model, place, jax.tree.map(lambda x: x[None], slope), 1e-4, 300)
        natural = jax.tree.map(lambda n, d: n + d[0], place.natural, found.natural)
        place = lr.place_at(model, place.hyper, natural, place.batch)
    return place


def means(model, place):
    return {
        site: jnp.asarray(family.distribution(place.natural[site]).mean)
        for site, family in model.families.items()
    }


def rights_of(model, place, function):
    """Gradients of a vector of functions of the sites' means with respect to E[t]."""
    slopes = jax.jacrev(function)(means(model, place))
    rights = {
        site: jax.vmap(lambda c, s=site: fam.regression(model.families[s], place.natural[s], c))(
            slopes[site]
        )
        for site in model.families
    }
    return gauge.without_turns(model, place.mean, rights)


def some_numbers(model):
    """The first numbers of every site, and of the expected data."""
    return lambda values: jnp.concatenate([values[site].ravel()[:3] for site in model.families])


def test_curvature_is_the_derivative_of_the_gradient(problem, place):
    """F'' times a change of E[t] is the difference of dF/dmu over that change, auxiliaries
    eliminated anew at either end. Central differences of 1e-5 leave an error of about 1e-8.
    """
    model, rights = problem.model, rights_of(problem.model, place, some_numbers(problem.model))
    change = lr.fisher(model, place, jax.tree.map(lambda x: jnp.sum(x, 0), rights))
    size = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(change))
    change = jax.tree.map(lambda x: x / size, change)
    step = 1e-5
    ends = [
        lr.gradient(model, place, jax.tree.map(lambda m, d, e=e: m + e * d, place.mean, change))
        for e in (step, -step)
    ]
    difference = jax.tree.map(lambda a, b: (a - b) / (2 * step), *ends)
    expected = ravel_pytree(lr.without_points(model, difference))[0]
    found = ravel_pytree(lr.curvature(model, place, change))[0]
    scale = float(jnp.max(jnp.abs(expected))) + 1e-3
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)


def test_response_is_the_inverse_curvature(problem, place):
    """Conjugate gradients agree with the dense (I - V F'')^-1 V to 1e-6, and the covariance is
    symmetric.
    """
    model, rights = problem.model, rights_of(problem.model, place, some_numbers(problem.model))
    rights = jax.vmap(lambda b: lr.without_points(model, b))(rights)
    found = lr.respond(model, place, rights, tolerance=1e-9)
    assert found.is_maximum.all()
    flat, back = ravel_pytree(place.natural)
    units = jnp.eye(len(flat))

    def columns(apply):
        return np.asarray(jax.jit(jax.vmap(lambda e: ravel_pytree(apply(back(e)))[0]))(units)).T

    fisher = columns(lambda d: lr.fisher(model, place, d))
    bent = columns(lambda d: lr.curvature(model, place, d))
    b = np.asarray(jax.vmap(lambda x: ravel_pytree(x)[0])(rights))
    shift = np.asarray(jax.vmap(lambda x: ravel_pytree(x)[0])(found.shift))
    dense = np.linalg.lstsq(np.eye(len(flat)) - fisher @ bent, fisher @ b.T, rcond=1e-11)[0].T
    covariance = b @ dense.T
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance))) + 1e-300
    np.testing.assert_allclose(b @ shift.T / scale, covariance / scale, atol=1e-6)
    np.testing.assert_allclose(b @ shift.T / scale, (b @ shift.T).T / scale, atol=1e-6)


def test_the_posterior_moves_with_a_tilt(problem, place):
    """If F is tilted by e times a functional, the new maximum's means differ by e Sigma b."""
    model = problem.model
    rights = rights_of(model, place, lambda x: some_numbers(model)(x)[-2:])
    tilt = lr.without_points(model, jax.tree.map(lambda x: jnp.sum(x, 0), rights))
    shift = lr.respond(model, place, jax.tree.map(lambda x: x[None], tilt), 1e-9).shift
    size = float(lr.inner(jax.tree.map(lambda x: x[0], shift), tilt)) ** 0.5
    step = 1e-3 / max(size, 1e-12)
    tilted = newton(model, place, 3, jax.tree.map(lambda b: step * b, tilt))
    change = jax.tree.map(lambda a, b: (a - b) / step, tilted.mean, place.mean)
    expected = float(lr.inner(jax.tree.map(lambda x: x[0], shift), tilt))
    assert float(lr.inner(change, tilt)) == pytest.approx(expected, rel=1e-2)


def test_rotations_of_natural_parameters_and_statistics_agree(problem, place):
    """V times the tangent of the natural parameters is that of the statistics, and the bound is
    flat along it: V^-1 tau = F'' tau at a maximum.
    """
    model = problem.model
    number = gauge.number_of_turns(model, place.mean)
    if not number:
        pytest.skip("the posterior is not invariant to rotations")
    weights = jnp.arange(1.0, number + 1)
    mean, natural = (gauge.turn(model, x, weights) for x in (place.mean, place.natural))
    for found, expected in (
        (lr.fisher(model, place, natural), mean),
        (lr.curvature(model, place, mean), natural),
    ):
        one, other = ravel_pytree(found)[0], ravel_pytree(expected)[0]
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(one / scale, other / scale, atol=1e-7)
