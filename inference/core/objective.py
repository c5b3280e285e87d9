r"""The mean-field objective of any model, from its $F$ alone.

$$ \begin{aligned}
\text{bound}(q) &= F(\mu) + H(q), \quad \mu = E_q[t] \\
\text{target}_s &= \partial F / \partial \mu_s \\
\text{natural gradient}_s &= \text{target}_s - \eta_s
\end{aligned} $$

The bound is a lower bound of the log marginal likelihood (ELBO), and the target is the natural
parameter that maximises it over block $s$ (X 12-16, P 11.25-11.29; natural gradient: X 25,
P 11.20-11.22, T 10; P: Paisley, Blei & Jordan, T: Theis & Hoffman, X: Fox's slides).

$F$ is a sum over rows plus a part without data. Every engine adds up `local_part`, one batch's
share of the rows with their own sites solved. With `summary="mode"` the same code evaluates points
in place of means: EM and MAP.
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
    learn: tuple[str, ...] = ()  # hyper-parameters learned by empirical Bayes


def summarise(
    model: Model, natural: Sites, summary: str = "mean", start: Any = None, sweeps: Any = None
) -> Sites:
    """The statistics that stand for q at every given site.

    start, sweeps: where an iterative search for a mode begins, and how long it is.
    """
    begin, families = start or {}, model.families
    return {
        site: fam.summarise(families[site], eta, summary, begin.get(site), sweeps)
        for site, eta in natural.items()
    }


def shorten(model: Model, stats: Sites, target: Any, site: str) -> Any:
    """A site's target; of a site in which F is not linear, a damped Newton step towards it."""
    return fam.newton_step(stats[site], target) if site in model.damped else target


@partial(jax.jit, static_argnames=("model",))
def shared_bound(model: Model, hyper: Any, natural: Sites) -> jax.Array:
    """The part of the bound without data: that of F, and the entropy of the global sites."""
    entropies = (jnp.sum(fam.entropy(model.families[s], natural[s])) for s in model.shared)
    return model.log_global(hyper, summarise(model, natural)) + sum(entropies)


@partial(jax.jit, static_argnames=("model", "summary"))
def shared_value(model: Model, hyper: Any, stats: Sites, summary: str) -> jax.Array:
    """The part without data of the log density of x ("mode") or of log x ("log_mode")."""
    measures = (jnp.sum(fam.log_measure(model.families[s], stats[s], summary)) for s in stats)
    return model.log_global(hyper, stats) + sum(measures)


class LocalPart(NamedTuple):
    """One batch's share of the objective with its local sites solved."""

    value: jax.Array  # log_local
    entropy: jax.Array  # of the local sites; for a point, the log base measure
    gradient: Sites  # d log_local / d mu of the global sites
    natural: Sites  # of the local sites
    stats: Sites  # of the local sites
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
    """Solve the batch's local sites given statistics of the global ones, and differentiate F.

    start: statistics of the local sites to begin with. key: how auxiliaries are eliminated;
    `UNIFORM` spreads them evenly. A model's own solver leaves its allocations in the batch, so
    that F and its gradient need no second pass.
    """
    sweeps = None
    if model.solve_local and key is None:
        natural, info, batch = model.solve_local(hyper, stats, batch, start, options, summary)
        sweeps = options.num_local  # of rows whose mode has no closed form
    else:
        solved = _fixed_point(model, hyper, stats, batch, start, options, summary, key)
        natural, info, start = solved
    local = jax.lax.stop_gradient(summarise(model, natural, summary, start, sweeps))
    value, gradient = jax.value_and_grad(
        lambda shared: model.log_local(hyper, {**shared, **local}, batch, key)
    )(stats)
    entropy = jnp.zeros(())
    for site, eta in natural.items():
        family = model.families[site]
        mean = summary == "mean"
        term = fam.entropy(family, eta) if mean else fam.log_measure(family, local[site], summary)
        entropy += batch.sum(term)
    return LocalPart(value, entropy, gradient, natural, local, info)


def _choose(condition: jax.Array, new: Any, old: Any) -> Any:
    """The new or the old row; the new parameter if it has no rows."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        rows = condition.reshape(-1, *(1,) * (a.ndim - 1))
        return jnp.where(rows, a, b) if len(a) == len(condition) else a

    return jax.tree.map(pick, new, old)


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
    """Iterate the local sites of any model by the gradient of F; also the statistics there.

    Every row stops for itself, independently of the batch and its padding. Parameters that rows
    share (a common precision) depend on no row.
    """
    sites = [site for site in model.families if site in model.local]
    if not sites:
        nothing = jnp.zeros(batch.num_rows)
        return {}, RowInfo(nothing.astype(int), nothing), {}
    first = model.init(jax.random.key(0), hyper, batch)
    # sites whose statistics go on moving when their target rests
    settling = [site for site in sites if model.families[site].settles]

    def target(site: str, local: Sites) -> Any:
        def value(t: Any) -> jax.Array:
            return model.log_local(hyper, {**stats, **local, site: t}, batch, key)

        # padding has no gradient: it keeps the start, which is a distribution, against NaNs
        return _choose(batch.mask > 0, jax.grad(value)(local[site]), first[site])

    def improve(state):
        step, iterations, local, natural, moves = state
        going = moves > options.tolerance
        new, before = dict(natural), local
        for site in sites:
            goal = shorten(model, local, target(site, local), site)
            new[site] = _choose(going, goal, natural[site])
            found = fam.summarise(model.families[site], new[site], summary, local[site])
            local = {**local, site: _choose(going, found, local[site])}
        after = jax.tree.leaves((new, [local[s].first for s in settling]))
        old = jax.tree.leaves((natural, [before[s].first for s in settling]))
        moved = [
            jnp.mean(jnp.abs(a - b).reshape(len(a), -1), 1) * jnp.ones(batch.num_rows)
            for a, b in zip(after, old, strict=True)
        ]
        moves = jnp.where(going, jnp.max(jnp.stack(moved), 0), moves)
        return step + 1, iterations + going, local, new, moves

    natural = {site: first[site] for site in sites}
    moves = jnp.where(batch.mask > 0, jnp.inf, 0.0)
    _, iterations, local, natural, moves = jax.lax.while_loop(
        lambda state: (state[0] < options.num_local) & jnp.any(state[4] > options.tolerance),
        improve,
        (0, jnp.zeros(batch.num_rows, int), start, natural, moves),
    )
    return natural, RowInfo(iterations, moves), local


class Block(NamedTuple):
    """What `block_gradient` and `local_value` are compiled for.

    local: (model, own part of the rows) -> their statistics. summary: of the global sites, given
    as natural parameters; None if they are statistics already.
    """

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
    """d log_local / d mu of one global site at the current statistics of all others."""
    hyper, stats, batch = block.given(common, own)
    site = block.site
    return jax.grad(lambda t: block.model.log_local(hyper, {**stats, site: t}, batch))(stats[site])


def local_value(block: Block, common: Any, own: Any) -> jax.Array:
    """log_local at given statistics."""
    hyper, stats, batch = block.given(common, own)
    return block.model.log_local(hyper, stats, batch)


@partial(jax.jit, static_argnames=("model", "site", "summary"))
def block_target(
    model: Model, hyper: Any, shared: Sites, gradients: Any, site: str, summary: str | None
) -> Any:
    """dF/dmu of one global site from the prior and the devices' gradients, damped if it must be.

    shared: natural parameters, or statistics if `summary` is None. The gradient of a conjugate
    prior does not depend on the statistics, which XLA then never computes.
    """
    stats = shared if summary is None else summarise(model, shared, summary)
    return shorten(model, stats, add(prior_gradient(model, hyper, stats)[site], *gradients), site)


def prior_gradient(model: Model, hyper: Any, stats: Sites) -> Sites:
    """d log_global / d mu: what the prior contributes to the target."""
    return jax.grad(lambda shared: model.log_global(hyper, shared))(stats)


def add(*sites: Any) -> Any:
    """Sum of gradients, leaf by leaf."""
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *sites)


def blend(old: Any, new: Any, rate: Any) -> Any:
    """(1 - rate) old + rate new, leaf by leaf."""
    return jax.tree.map(lambda a, b: (1 - rate) * a + rate * b, old, new)


FRACTIONS = (1.0, 0.5, 0.25, 0.125, 0.03, 0.005)  # of the way to a target that are tried in turn


def advance(old: Any, move: Callable[[float], Any], height: Callable[[Any], Any]) -> Any:
    """Backtracking: the first `move(fraction)` that does not lower the objective, or `old`.

    height: gives the objective as terms to be added up. Falls within rounding are accepted.
    """
    terms = height(old)
    before, sizes = devices.total(terms), devices.total(jax.tree.map(jnp.abs, terms))
    rounding = 4 * max(jnp.finfo(term.dtype).eps for term in jax.tree.leaves(terms)) * sizes
    for fraction in FRACTIONS:
        new = move(fraction)
        if devices.total(height(new)) >= before - rounding:
            return new
    return old


def _first(model, hyper, batch):
    natural = model.init(jax.random.key(0), hyper, batch)
    return {site: natural[site] for site in natural if site in model.local}


def start_local(model: Model, hyper: Any, batch: Batch, summary: str = "mean") -> Sites:
    """The statistics at which the local sites of a fresh batch begin."""
    return summarise(model, _first(model, hyper, batch), summary)


def first_rows(problem: Problem, hyper: Any, batches: Sequence[Batch]) -> tuple[Sites, ...]:
    """Natural parameters of the local sites at the model's starting point, device by device."""
    return devices.run(_first, problem.model, problem.devices, hyper, batches)
