"""The mean-field objective of any model, from its F alone.

    bound(q)   = F(mu) + entropy(q),  mu = E_q[t]         a lower bound of the evidence
    target_s   = dF/dmu_s                                 the natural parameter that maximises it over block s (X 12-16, P 11.25-11.29)
    target_s - natural_s                                  its natural gradient (X 25, P 11.20-11.22, T 10)

F is a sum over rows plus a part without data, so every engine works on `local_part`, one device's share of the rows with their own sites
run to their fixed point, and adds the shares up. With `summary="mode"` the same code evaluates points instead of means: EM and MAP.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import devices
from pp_models import families as fam
from pp_models.data.batches import Batch
from pp_models.elimination.row_solver import RowInfo, RowOptions
from pp_models.model import Model, Sites


class Problem(NamedTuple):
    """What is fitted: the model, its hyper-parameters, the data, and the devices to use."""

    model: Model
    hyper: Any
    data: Any
    devices: tuple[Any, ...]
    learn: tuple[
        str, ...
    ] = ()  # hyper-parameters learned by empirical Bayes; the rest stay as given


def summarise(
    model: Model,
    natural: Sites,
    summary: str = "mean",
    start: Sites | None = None,
    sweeps: Any = None,
) -> Sites:
    """Statistics standing for q at every given site. start: statistics to begin with where they are searched for, sweeps: how often."""
    begin = start or {}
    return {
        site: fam.summarise(model.families[site], natural[site], summary, begin.get(site), sweeps)
        for site in natural
    }


def shorten(model: Model, stats: Sites, target: Any, site: str) -> Any:
    """A site's target, or, where F is not linear in its statistics, one no further from them than a Newton step should go."""
    return fam.newton_step(stats[site], target) if site in model.damped else target


@partial(jax.jit, static_argnames=("model",))
def shared_bound(model: Model, hyper: Any, natural: Sites) -> jax.Array:
    """The part of the bound without data: F's, and the entropy of the global sites."""
    value = model.log_global(hyper, summarise(model, natural))
    return value + sum(
        jnp.sum(fam.entropy(model.families[site], natural[site])) for site in model.shared
    )


@partial(jax.jit, static_argnames=("model", "summary"))
def shared_value(model: Model, hyper: Any, stats: Sites, summary: str) -> jax.Array:
    """The part without data of a point's log density: of x with "mode", of log x with "log_mode"."""
    value = model.log_global(hyper, stats)
    return value + sum(
        jnp.sum(fam.log_measure(model.families[site], stats[site], summary)) for site in stats
    )


class LocalPart(NamedTuple):
    """One batch's share of the objective with its local sites solved."""

    value: jax.Array  # log_local
    entropy: (
        jax.Array
    )  # of the local sites (for a point: the log measure that its density is relative to)
    gradient: Sites  # d log_local / d mu of the global sites
    natural: Sites  # of the local sites
    stats: Sites  # standing for them
    info: RowInfo


def local_part(
    model: Model,
    hyper: Any,
    stats: Sites,
    batch: Batch,
    start: Sites,
    options: RowOptions,
    summary: str = "mean",
    key: Any = None,
) -> LocalPart:
    """Solve the batch's local sites given the statistics of the global ones, then differentiate F with respect to those.

    start: statistics of the local sites to begin with. When F is evaluated, the allocations that the solver ended with are
    known (`Solved`), so F and its gradient cost no second pass. key: how auxiliaries are eliminated; `UNIFORM` spreads them evenly.
    """
    sweeps = None
    if model.solve_local and key is None:
        natural, info, batch = model.solve_local(hyper, stats, batch, start, options, summary)
        sweeps = options.num_local  # of rows whose point has no closed form
    else:
        natural, info, start = _fixed_point(
            model, hyper, stats, batch, start, options, summary, key
        )
    local = jax.lax.stop_gradient(summarise(model, natural, summary, start, sweeps))
    value, gradient = jax.value_and_grad(
        lambda shared: model.log_local(hyper, {**shared, **local}, batch, key)
    )(stats)
    return LocalPart(
        value, _local_entropy(model, natural, local, batch, summary), gradient, natural, local, info
    )


def _local_entropy(
    model: Model, natural: Sites, stats: Sites, batch: Batch, summary: str
) -> jax.Array:
    total = jnp.zeros(())
    for site, eta in natural.items():
        family = model.families[site]
        total += batch.sum(
            fam.entropy(family, eta)
            if summary == "mean"
            else fam.log_measure(family, stats[site], summary)
        )
    return total


def _iterate(
    model: Model,
    hyper: Any,
    stats: Sites,
    batch: Batch,
    start: Sites,
    options: RowOptions,
    summary: str,
    key: Any = None,
) -> tuple[Sites, RowInfo, Batch]:
    """`_fixed_point` as a model's own `solve_local` would answer."""
    return *_fixed_point(model, hyper, stats, batch, start, options, summary, key)[:2], batch


def _fixed_point(
    model: Model,
    hyper: Any,
    stats: Sites,
    batch: Batch,
    start: Sites,
    options: RowOptions,
    summary: str,
    key: Any = None,
) -> tuple[Sites, RowInfo, Sites]:
    """The local fixed point of any model, one site after the other by the gradient of F; and the statistics there.

    Every row stops for itself: who else is in the batch, padding included, changes nothing for it. What rows have in common (a precision that is the
    same for all) has no row of its own and depends on none.
    """
    sites = [site for site in model.families if site in model.local]
    if not sites:
        nothing = jnp.zeros(batch.num_rows)
        return {}, RowInfo(nothing.astype(int), nothing), {}
    first = model.init(jax.random.key(0), hyper, batch)

    def as_rows(condition: jax.Array, new: Any, old: Any) -> Any:
        """Row by row one or the other; the new where there are no rows."""
        return jax.tree.map(
            lambda a, b: (
                jnp.where(condition.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
                if len(a) == batch.num_rows
                else a
            ),
            new,
            old,
        )

    def target(site: str, local: Sites) -> Any:
        gradient = jax.grad(
            lambda t: model.log_local(hyper, {**stats, **local, site: t}, batch, key)
        )(local[site])
        # padding has no gradient: it keeps the starting point, which is a distribution, so that nothing there becomes NaN
        return as_rows(batch.mask > 0, gradient, first[site])

    def improve(state):
        step, iterations, local, natural, moves = state
        going = moves > options.tolerance
        new, before = dict(natural), local
        for site in sites:
            new[site] = as_rows(
                going, shorten(model, local, target(site, local), site), natural[site]
            )
            local = {
                **local,
                site: as_rows(
                    going,
                    fam.summarise(model.families[site], new[site], summary, local[site]),
                    local[site],
                ),
            }
        settling = [
            site for site in sites if model.families[site].settles
        ]  # which go on moving when their target rests
        pairs = zip(
            jax.tree.leaves((new, [local[s].first for s in settling])),
            jax.tree.leaves((natural, [before[s].first for s in settling])),
            strict=True,
        )
        moved = [
            jnp.mean(jnp.abs(a - b).reshape(len(a), -1), 1) * jnp.ones(batch.num_rows)
            for a, b in pairs
        ]
        return (
            step + 1,
            iterations + going,
            local,
            new,
            jnp.where(going, jnp.max(jnp.stack(moved), 0), moves),
        )

    begin = (
        0,
        jnp.zeros(batch.num_rows, int),
        start,
        {site: first[site] for site in sites},
        jnp.where(batch.mask > 0, jnp.inf, 0.0),
    )
    _, iterations, local, natural, moves = jax.lax.while_loop(
        lambda state: (state[0] < options.num_local) & jnp.any(state[4] > options.tolerance),
        improve,
        begin,
    )
    return natural, RowInfo(iterations, moves), local


class Block(NamedTuple):
    """What `block_gradient` and `local_value` are compiled for. local: (model, rows' own) -> their statistics. summary: of the global sites, natural
    parameters, or None where they are statistics already."""

    model: Model
    local: Callable[[Model, Sites], Sites]
    summary: str | None = None
    site: str = ""

    def given(self, common: Any, own: Any) -> tuple[Any, Sites, Batch]:
        """Hyper-parameters, statistics of all sites, and the batch."""
        (hyper, shared), (rows, batch) = common, own
        stats = shared if self.summary is None else summarise(self.model, shared, self.summary)
        return hyper, {**stats, **self.local(self.model, rows)}, batch


def block_gradient(block: Block, common: Any, own: Any) -> Any:
    """d log_local / d mu of one global site with everything else as it is now: for blocks after the first."""
    hyper, stats, batch = block.given(common, own)
    return jax.grad(lambda t: block.model.log_local(hyper, {**stats, block.site: t}, batch))(
        stats[block.site]
    )


def local_value(block: Block, common: Any, own: Any) -> jax.Array:
    """log_local at given statistics."""
    hyper, stats, batch = block.given(common, own)
    return block.model.log_local(hyper, stats, batch)


@partial(jax.jit, static_argnames=("model", "site", "summary"))
def block_target(
    model: Model, hyper: Any, shared: Sites, gradients: Any, site: str, summary: str | None
) -> Any:
    """dF/dmu of one global site, shortened where it is damped: the prior's part and the devices' shares. `shared` is natural, or, with no
    summary, statistics.

    A conjugate prior's gradient does not depend on the statistics, and compiled in one piece it never computes them.
    """
    stats = shared if summary is None else summarise(model, shared, summary)
    return shorten(model, stats, add(prior_gradient(model, hyper, stats)[site], *gradients), site)


def blend(old: Any, new: Any, rate: Any) -> Any:
    """(1 - rate) old + rate new, leaf by leaf."""
    return jax.tree.map(lambda a, b: (1 - rate) * a + rate * b, old, new)


FRACTIONS = (
    1.0,
    0.5,
    0.25,
    0.125,
    0.03,
    0.005,
)  # of a damped site's way to its target that are tried in turn


def advance(old: Any, move: Callable[[float], Any], height: Callable[[Any], Any]) -> Any:
    """The first `move(fraction)` that does not lower the objective, rounding aside, or `old`. `height` gives it as terms to be added up."""
    terms = height(old)
    before, sizes = devices.total(terms), devices.total(jax.tree.map(jnp.abs, terms))
    rounding = 4 * max(jnp.finfo(term.dtype).eps for term in jax.tree.leaves(terms)) * sizes
    for fraction in FRACTIONS:
        new = move(fraction)
        if devices.total(height(new)) >= before - rounding:
            return new
    return old


def start_local(model: Model, hyper: Any, batch: Batch, summary: str = "mean") -> Sites:
    """The statistics at which the local sites of a fresh batch begin: those of the model's starting point."""
    natural = model.init(jax.random.key(0), hyper, batch)
    return summarise(
        model, {site: natural[site] for site in natural if site in model.local}, summary
    )


def _first(model, hyper, batch):
    natural = model.init(jax.random.key(0), hyper, batch)
    return {site: natural[site] for site in natural if site in model.local}


def first_rows(problem: Problem, hyper: Any, batches: Sequence[Batch]) -> tuple[Sites, ...]:
    """Natural parameters of the local sites at the model's starting point, device by device."""
    return devices.run(_first, problem.model, problem.devices, hyper, batches)


def prior_gradient(model: Model, hyper: Any, stats: Sites) -> Sites:
    """d log_global / d mu: what the prior contributes to the target."""
    return jax.grad(lambda shared: model.log_global(hyper, shared))(stats)


def add(*sites: Any) -> Any:
    """Sum of gradients, leaf by leaf."""
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *sites)
