"""The weights of new rows, given a fitted posterior of the global sites.

| posterior | the rows' weights |
|---|---|
| variational | means of q of the row, solved given the statistics of q of the global sites |
| draws, grid | averages over draws of the global sites, with common labels, of the row's means |
| point | the mode of the row given the point |

Weights are those that a model declares for its topics, else its rows' locations; of a mixture,
whose rows have no sites, the probabilities of the components. Weights that are functions of the
rows' sites are read at the sites' means.

Standard deviations are those of a row given the global sites, to which draws add the variance of
the row's means between draws. Of functions of sites they are estimated from `SPREAD` draws of the
row, with the same random numbers for every row; of a component, they are those of the indicator of
the row's component.

Rows are solved in batches whose shapes are powers of two: a call with other rows rarely compiles.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core.completion import finite_statistics, topics_of
from inference.core.posterior import in_batches
from inference.core.posteriors import Variational
from inference.core.summaries import summary_at
from inference.core.topics import labelled_draws, mixture_weights
from pp_models.data.batches import Layout, power_of_two
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Model, Sites

BATCH = 1024  # rows solved at a time
MOST_DRAWS = 40  # of the global sites, evenly spaced
SPREAD = 200  # draws of a row for the sd of a function of its sites
SOLVED = RowOptions(200, 1e-5)


class Given(NamedTuple):
    """What `_solve` is compiled for.

    site: of the weights, "" if the model declares them as a function. mixture: the site of a
    mixture's weights, or None. summary: which point stands for a row. spread: whether variances are
    wanted
    """

    model: Model
    site: str
    mixture: str | None
    summary: str
    spread: bool


def word_of(model: Model) -> str:
    """What a column of the weights is called."""
    if topics_of(model) is not None:
        return "topic"
    return "factor" if model.local else "component"


def transform(
    problem: obj.Problem, posterior: Any, options: Any, data: Any, sd: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """(rows, K) means of the weights of the rows of `data`, and their sds if they are wanted.

    problem, posterior, options: of a fit. data: rows with the columns that were fitted
    """
    model, hyper = problem.model, problem.hyper
    if sd and not posterior.has_spread:
        raise InputError(
            "A point estimate has no standard deviations: fit by a variational engine or a "
            "sampler, or leave sd=True out."
        )
    model.check_rows(data)
    layout, size = _layout(data)
    given = Given(model, *_weights(model), "mean", sd)
    shared = _global(given, posterior)
    parts: list[Any] = []
    for rows, batch in in_batches(data, size, layout):
        if not parts and posterior.kind == "point" and model.local:
            basis = options["basis"]
            given = given._replace(summary=summary_at(model, hyper, basis, batch))
        here = jax.device_put((hyper, shared), batch.mask.sharding)
        found = _solve(given, *here, batch, SOLVED)
        parts.append([np.asarray(x)[: rows.size] for x in found])
    mean, variance = (np.concatenate(x) for x in zip(*parts, strict=True))
    if given.mixture is not None and not np.allclose(mean.sum(1), 1, atol=1e-3):
        raise InputError(
            f"Rows of {model.name} have no sites of their own, and its F gives no probabilities "
            "of components: there is nothing to transform rows to."
        )
    return mean, np.sqrt(np.maximum(variance, 0)) if sd else None


def _weights(model: Model) -> tuple[str, str | None]:
    """The site of the rows' weights, or "" if they are a function; and that of a mixture."""
    if not model.local:
        if (mixture := mixture_weights(model)) is None:
            raise InputError(
                f"Rows of {model.name} have neither sites of their own nor components: there is "
                "nothing to transform rows to."
            )
        return "", mixture
    if (named := topics_of(model)) is None:
        sites = [model.ratings.sites[0]] if model.ratings else list(model.families)
        return next(site for site in sites if site in model.local), None
    values = {site: object() for site in model.families}
    try:  # a declared weight may be a site itself
        found: Any = named.weights(None, values)
    except (TypeError, AttributeError):
        return "", None
    return next((site for site in model.local if values[site] is found), ""), None


class Global(NamedTuple):
    """The global sites, (draws, ...): values, and statistics where they are not those of values."""

    values: Sites
    stats: Sites | None = None


def _global(given: Given, posterior: Any) -> Global:
    sites = list(given.model.shared)
    if isinstance(posterior, Variational):
        natural = {site: jax.tree.map(jnp.asarray, posterior.natural(site)) for site in sites}
        needed = [] if given.site or given.mixture else sites  # by the function of the weights
        means = {site: jnp.asarray(posterior.mean(site))[None] for site in needed}
        return Global(means, _statistics(given.model, natural))
    if not posterior.has_chains:
        return Global(posterior.global_values(MOST_DRAWS))
    draws = labelled_draws(given.model, posterior, sites)
    number = len(draws[sites[0]])
    kept = np.linspace(0, number - 1, min(number, MOST_DRAWS)).round().astype(int)
    return Global({site: jnp.asarray(x[kept]) for site, x in draws.items()})


@partial(jax.jit, static_argnames=("model",))
def _statistics(model, natural):
    return jax.tree.map(lambda x: x[None], obj.summarise(model, natural))


def _layout(data: Any) -> tuple[Layout, int]:
    """Static sizes rounded up to powers of two, and the number of rows of a batch."""
    size = min(BATCH, power_of_two(max(16, data.num_rows)))
    lengths = {} if data.matrix is None else {"matrix": data.lengths}
    if data.votes is not None:
        lengths["votes"] = np.diff(data.votes.indptr)
    widths, capacity = {}, {}
    for name, each in lengths.items():
        used = np.add.reduceat(each, np.arange(0, data.num_rows, size))
        widths[name] = _widths(int(each.max(initial=1)))
        capacity[name] = power_of_two(max(1024, int(used.max())))
    if data.kind == "ratings":
        widths["by_column"], capacity["by_column"] = _widths(size), capacity["matrix"]
    return Layout(widths, capacity, size, 1), size


def _widths(longest: int) -> tuple[int, ...]:
    return tuple(16 << i for i in range((power_of_two(max(16, longest)) // 16).bit_length()))


@partial(jax.jit, static_argnames=("given",))
def _solve(given, hyper, shared, batch, options):
    """Means over draws of the rows' weights, and their variances."""

    def at(one):
        values, stats = one
        stats = finite_statistics(given.model, values) if stats is None else stats
        if given.mixture is not None:
            return _of_components(given, hyper, stats, batch)
        return _of_sites(given, hyper, stats, values, batch, options)

    def add(sums, one):
        mean, variance = at(one)
        return jax.tree.map(jnp.add, sums, (mean - centre, (mean - centre) ** 2, variance)), None

    number = len(jax.tree.leaves(shared)[0])
    centre, variance = at(jax.tree.map(lambda x: x[0], shared))  # against cancellation
    zeros = jnp.zeros_like(centre)
    others = jax.tree.map(lambda x: x[1:], shared)
    sums = zeros, zeros, variance
    if number > 1:
        sums, _ = jax.lax.scan(add, sums, others)
    shift, square, variance = (x / number for x in sums)
    return centre + shift, variance + square - shift**2


def _of_sites(given, hyper, stats, values, batch, options):
    model = given.model
    start = obj.start_local(model, hyper, batch, given.summary)
    part = obj.local_part(model, hyper, stats, batch, start, options, given.summary)
    if given.summary != "mean":
        points = {site: model.families[site].value(t) for site, t in part.stats.items()}
        weights = _read(given, hyper, {**values, **points})
        return weights, jnp.zeros_like(weights)
    chosen = {s: model.families[s].distribution(eta) for s, eta in part.natural.items()}
    mean = _read(given, hyper, {**values, **{site: d.mean for site, d in chosen.items()}})
    if not given.spread:
        return mean, jnp.zeros_like(mean)
    if given.site:
        return mean, chosen[given.site].variance
    return mean, _spread(given, hyper, part.natural, values, mean)


def _read(given, hyper, values):
    """The weights at values of all sites."""
    if given.site:
        return values[given.site]
    return topics_of(given.model).weights(hyper, values)


def _spread(given, hyper, natural, values, centre):
    """The variances of a function of the rows' sites, from draws that are the same for all."""
    families, size = given.model.families, len(centre)
    rows = {
        site: jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape[1:])), eta)
        for site, eta in natural.items()
    }

    def draw(key):
        keys = dict(zip(rows, jax.random.split(key, len(rows)), strict=True))

        def one(site, eta):
            single = jax.tree.map(lambda x: x[None], eta)
            return families[site].value(families[site].sample(keys[site], single))[0]

        drawn = {site: jax.vmap(partial(one, site))(eta) for site, eta in rows.items()}
        return _read(given, hyper, {**values, **drawn})

    def add(sums, key):
        away = draw(key) - centre
        return (sums[0] + away, sums[1] + away**2), None

    keys, zeros = jax.random.split(jax.random.key(0), SPREAD), jnp.zeros_like(centre)
    (total, squares), _ = jax.lax.scan(add, (zeros, zeros), keys)
    return squares / SPREAD - (total / SPREAD) ** 2


def _of_components(given, hyper, stats, batch):
    """Each row gets its own copy of the mixture's weights: the gradient of F with respect to it is
    the probability of each component for this row, as `choose` has it."""
    site, size = given.mixture, batch.num_rows
    copies = jax.tree.map(lambda x: jnp.tile(x, (size, *[1] * x.ndim)), stats[site])
    gradient = jax.grad(lambda t: given.model.log_local(hyper, {**stats, site: t}, batch))(copies)
    return gradient, gradient * (1 - gradient)
