"""Curvature of the Laplace engines against Hessians by autodiff."""

import jax
import numpy as np
import pytest

from inference.engines import _laplace
from inference.run import fit as fitting
from pp_models import model as base
from pp_models.models import lg_nmf, lg_nmf_votes, lg_op


@pytest.mark.slow
@pytest.mark.parametrize("model", [lg_nmf, lg_nmf_votes, lg_op])
def test_curvature_is_the_hessians_blocks(model):
    """Gradient and diagonal blocks of jax.hessian of the log joint, row by row (1e-6)."""
    hyper, data = model.example(jax.random.key(0))
    given = {name: 0.8 for name in ("alpha1", "alpha2") if name in hyper._fields}
    problem = fitting.make_problem(
        model.MODEL.name, data, hyper._replace(**given), devices=jax.local_devices()[:1]
    )
    batch = problem.data.pack()
    values = {
        site: x
        for site, x in base.simulate(problem.model, problem.hyper, batch, jax.random.key(1)).items()
        if site in problem.model.families
    }
    stats = {site: problem.model.families[site].stats(x) for site, x in values.items()}
    for site, (g, P) in _laplace.curvatures(problem.model, problem.hyper, stats, batch).items():
        x = values[site]

        def height(row, i, site=site, x=x):
            return base.log_joint(
                problem.model, problem.hyper, {**values, site: x.at[i].set(row)}, batch
            )

        for i in (0, 2):
            np.testing.assert_allclose(g[i], jax.grad(height)(x[i], i), rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(
                P[i if len(P) > 1 else 0], -jax.hessian(height)(x[i], i), rtol=1e-6, atol=1e-8
            )


def test_curvature_counts_the_utilities_that_votes_eliminated():
    """Gradient and Hessian block of a member, with the curvature of log Phi."""
    hyper, data = lg_nmf_votes.example(jax.random.key(0))
    problem = fitting.make_problem(
        "lg_nmf_votes",
        data,
        hyper._replace(alpha1=0.8, alpha2=0.8),
        devices=jax.local_devices()[:1],
    )
    model, batch = problem.model, data.pack()
    values = {
        site: x
        for site, x in base.simulate(model, problem.hyper, batch, jax.random.key(1)).items()
        if site in model.families
    }
    stats = {site: model.families[site].stats(x) for site, x in values.items()}

    def height(member):
        return base.log_joint(
            model, problem.hyper, {**values, "d2": values["d2"].at[0].set(member)}, batch
        )

    g, P = jax.jit(lambda t: _laplace.curvatures(model, problem.hyper, t, batch)["d2"])(stats)
    slope, hessian = jax.jit(lambda x: (jax.grad(height)(x), jax.hessian(height)(x)))(
        values["d2"][0]
    )
    np.testing.assert_allclose(g[0], slope, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(P[0], -hessian, rtol=1e-6, atol=1e-8)
