"""Rows of the tables of `widths`: quantities, their widths beside a reference's, Markdown."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import align

MOST = 400  # entries of the expected data
HEAD = (
    *("model", "quantity", "sd, mean field", "sd, corrected"),
    *("covers, mean field", "covers, corrected", "means off"),
)


class Quantity(NamedTuple):
    """Medians over the numbers of a site or of the expected data, beside a reference."""

    name: str
    plain: float
    corrected: float
    covers_plain: float
    covers_corrected: float
    off: float

    def cells(self, model):
        return (f"`{model}`", self.name, *(f"{x:.2f}" for x in self[1:]))


def print_table(rows, is_head=False):
    for cells in rows:
        print(f"| {' | '.join(cells)} |", flush=True)
    if is_head:
        print("|" + "---|" * len(rows[0]), flush=True)


def flatten(draws):
    return {site: np.asarray(x).reshape(-1, *x.shape[2:]) for site, x in draws.items()}


def expected(problem, most=MOST):
    """Values of all sites -> the first entries of the expected data."""
    model, hyper = problem.model, problem.hyper
    return lambda x: model.predict(hyper, x).reshape(-1)[:most]


def quantities(fit, draws, pivot):
    """Name -> (draws, numbers): the expected data, and sites after alignment."""
    given = {site: jnp.asarray(x) for site, x in draws.items()}
    aligned = align.align_draws(fit.model, draws, pivot)
    data = jax.jit(lambda x: jax.lax.map(expected(fit.problem), x))(given)
    found = {"expected data": np.asarray(data)}
    return found | {site: x.reshape(len(x), -1) for site, x in aligned.items()}


def row(name, reference, plain, corrected, chosen=None):
    """Medians over the numbers that vary, or over those chosen of them."""
    sd = reference.std(0)
    good = (sd > 1e-9) if chosen is None else (sd > 1e-9) & chosen

    def covered(found):
        low, high = np.quantile(found, [0.05, 0.95], axis=0)
        return np.mean(((low < reference) & (reference < high))[:, good])

    ratios = [
        np.median((found.std(0) / np.where(good, sd, 1))[good]) for found in (plain, corrected)
    ]
    off = np.median(np.abs(corrected.mean(0) - reference.mean(0))[good] / sd[good])
    return Quantity(name, *ratios, covered(plain), covered(corrected), off)
