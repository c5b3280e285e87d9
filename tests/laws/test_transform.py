"""New rows under a fitted posterior, for every discovered model with one.

Rows are solved until no natural parameter moves by more than 1e-5 in an iteration, and a fit by
cavi until its bound rests. The row solvers converge at rates up to about 0.9, so that weights agree
to some 1e-4 of the largest.
"""

import dataclasses

import jax
import numpy as np

import inference
from inference.core.completion import topics_of
from inference.core.topics import mixture_weights
from inference.core.transform import word_of

CLOSE = 2e-4


def assert_close(found, wanted):
    size = np.abs(wanted).max()
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=CLOSE * size, rtol=0)


def fitted_weights(fit):
    """The weights of the fitted rows: those of topics, else the rows' factors."""
    values = {site: fit.posterior.mean(site) for site in fit.posterior.sites}
    if (named := topics_of(fit.model)) is not None:
        return np.asarray(named.weights(fit.hyper, values))
    sites = fit.model.ratings.sites if fit.model.ratings else fit.model.families
    return values[next(site for site in sites if site in fit.model.local)]


def permuted(data, order):
    """The same rows with their named columns in another order."""
    names = tuple(data.column_names[i] for i in order)
    matrix = None if data.matrix is None else data.matrix[:, order]
    values = None if data.values is None else data.values[:, order]
    return dataclasses.replace(data, matrix=matrix, values=values, column_names=names)


def test_new_rows_are_solved_as_the_fitted_ones_were(problem, tmp_path):
    """transform of the fitted data gives the fitted rows' means; the order of the columns, the
    other rows and the absence of the fitted data change nothing. Probabilities of components sum to
    one, and agree with the weights: their mean is the update of q(weights).
    """
    names = tuple(f"column {i}" for i in range(problem.data.num_columns))
    data = dataclasses.replace(problem.data, column_names=names)
    options = {"num_epochs": 2000, "tolerance": 1e-9, "progress": False}
    key = jax.random.key(0)
    fit = inference.fit(problem.model.name, data, "cavi", problem.hyper, key, **options)
    means, sds = (x.to_numpy() for x in fit.transform(data, sd=True))
    assert np.isfinite(means).all() and np.isfinite(sds).all() and (sds >= 0).all()
    if (site := mixture_weights(fit.model)) is None:
        assert_close(means, fitted_weights(fit))
    else:
        np.testing.assert_allclose(means.sum(1), 1, rtol=1e-9)
        counted = fit.posterior.natural(site) - fit.hyper.concentration
        assert_close(means.sum(0), np.asarray(counted))

    order = np.random.default_rng(0).permutation(len(names))
    assert_close(fit.transform(permuted(data, order), sd=True)[0], means)
    alone = fit.transform(data.select(np.array([4, 1])), sd=True)
    assert_close(alone[0], means[[4, 1]])
    assert_close(alone[1], sds[[4, 1]])
    stored = inference.load(fit.save(tmp_path / "fit"))
    assert stored.data is None
    again = stored.transform(data, sd=True)[0]
    assert_close(again, means)
    assert list(again.columns) == [f"{word_of(fit.model)} {k}" for k in range(means.shape[1])]
