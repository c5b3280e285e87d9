"""What the engines that step on batches of rows share: the rows solved on every device, and the update they make.

    natural <- (1 - rate) anchor + rate (prior + scale * sum of the rows' statistics)                            (T 10, T 14)

With the current parameters as anchor this is a natural-gradient step; held fixed while the rows are solved again and again it is the trust
region's inner loop; with rate 1 it is coordinate ascent on the batch. Global sites are updated in turn, which differs from all at once only where
they meet in the prior.

Everything here is said of means, for variational inference; with `summary` "mode" or "log_mode" it is said of points, whose statistics, where they
are known already, need not be searched for again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import devices
from inference.core import objective as obj
from inference.core.engine import Algorithm
from inference.core.posteriors import Variational
from pp_models.data.batches import Batch
from pp_models.elimination.primitive import UNIFORM
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError, unknown
from pp_models.model import Sites


class Share(NamedTuple):
    """One device's rows, solved given the global sites.

    gradient:   d log_local / d mu of the global sites
    bound:      log_local and the rows' entropy, or nothing when not asked for
    natural:    the rows' own natural parameters
    iterations: of the rows' fixed point, summed over rows
    rows:       how many rows there are
    """

    gradient: Sites
    bound: tuple[jax.Array, ...]
    natural: Sites
    iterations: jax.Array
    rows: jax.Array


class Setting(NamedTuple):
    """What `solve_share` is compiled for; see `solve`."""

    model: Any
    bound: bool = False
    even: bool = False
    summary: str = "mean"
    weights: str = "geometric"


def solve_share(setting: Setting, common: Any, own: Any) -> Share:
    """One device's part of `solve`."""
    (hyper, shared, options), (batch, start), model, summary = (
        common,
        own,
        setting.model,
        setting.summary,
    )
    begin = (
        obj.start_local(model, hyper, batch, summary)
        if start is None
        else obj.summarise(model, start, summary)
    )
    stats = (
        shared
        if summary in ("mode", "log_mode")
        else obj.summarise(model, shared, WEIGHTS[setting.weights])
    )
    part = obj.local_part(
        model, hyper, stats, batch, begin, options, summary, UNIFORM if setting.even else None
    )
    value = (part.value, part.entropy) if setting.bound else ()
    return Share(
        part.gradient,
        value,
        part.natural,
        jnp.sum(part.info.iterations * batch.mask),
        jnp.sum(batch.mask),
    )


def solve(
    problem: obj.Problem,
    hyper: Any,
    shared: Sites,
    batches: Sequence[Batch],
    rows: RowOptions,
    start: Sequence[Sites] | None = None,
    bound: bool = False,
    even: bool = False,
    summary: str = "mean",
    weights: str = "geometric",
) -> tuple[Share, ...]:
    """The rows of every device's batch run to their fixed point, from `start` or afresh. With `even`, auxiliaries are spread evenly (phi = 1/K).

    shared: natural parameters; of points, their statistics. weights: see `check_weights`.
    """
    setting = Setting(problem.model, bound, even, summary, weights)
    own = list(zip(batches, [None] * len(batches) if start is None else start, strict=True))
    return devices.run(solve_share, setting, problem.devices, (hyper, shared, rows), own)


def _block(model, hyper, site, shared, gradients, scale, prior, summary="mean", near=None):
    """dF/dmu of one global site, cut where it is damped, or with `prior` in place of the model's own."""
    stats = obj.summarise(
        model, shared, summary, near
    )  # compiled in one piece, and only what is used
    own = obj.prior_gradient(model, hyper, stats)[site] if prior is None else prior[site]
    added = jax.tree.map(
        lambda p, *shares: p + scale * sum(shares), own, *(gradient[site] for gradient in gradients)
    )
    return obj.shorten(model, stats, added, site)


@partial(jax.jit, static_argnames=("model",))
def _target(model, hyper, shared, gradients, scale):
    return {
        site: _block(model, hyper, site, shared, gradients, scale, None) for site in model.shared
    }


@partial(jax.jit, static_argnames=("model", "summary"))
def _ascend(model, hyper, shared, gradients, scale, rate, anchor, prior, summary, near):
    shared = dict(shared)
    for site in model.shared:  # compiled in one piece, and as one block where the sites do not meet
        target = _block(model, hyper, site, shared, gradients, scale, prior, summary, near)
        shared[site] = target if anchor is None else obj.blend(anchor[site], target, rate)
    return shared


def gradients(problem: obj.Problem, shares: Sequence[Share]) -> tuple[Sites, ...]:
    """The shares' statistics on the first device."""
    return tuple(devices.gather(problem.devices, [share.gradient for share in shares]))


def target(
    problem: obj.Problem, hyper: Any, shared: Sites, gradients: tuple[Sites, ...], scale: Any
) -> Sites:
    """dF/dmu of the global sites, all at once, with the rows' statistics scaled up."""
    return _target(problem.model, hyper, shared, gradients, scale)


def ascend(
    problem: obj.Problem,
    hyper: Any,
    shared: Sites,
    gradients: tuple[Sites, ...],
    scale: Any,
    rate: Any = 1.0,
    anchor: Sites | None = None,
    prior: Sites | None = None,
    summary: str = "mean",
    near: Sites | None = None,
) -> Sites:
    """(1 - rate) anchor + rate target for one global site after the other, each given the new values of those before it.

    anchor: None for the target itself. prior: natural parameters to stand for the model's own. near: statistics where a search for some may begin.
    """
    return _ascend(
        problem.model, hyper, shared, gradients, scale, rate, anchor, prior, summary, near
    )


class Totals(NamedTuple):
    """The devices' shares added up. scale: N / |B|. bound: the scaled local terms. iterations: of the rows' fixed point, mean over rows."""

    scale: jax.Array
    bound: list[jax.Array]
    iterations: jax.Array


@jax.jit
def _total(parts, present):
    rows = sum(count for _, _, count in parts)
    scale = present / rows
    return Totals(
        scale,
        [scale * term for bound, _, _ in parts for term in bound],
        sum(count for _, count, _ in parts) / rows,
    )


def total(problem: obj.Problem, shares: Sequence[Share], present: Any) -> Totals:
    """What the shares say together of a data set of `present` rows."""
    return _total(
        tuple(
            devices.gather(
                problem.devices, [(share.bound, share.iterations, share.rows) for share in shares]
            )
        ),
        present,
    )


def bound_terms(
    problem: obj.Problem, hyper: Any, shared: Sites, totals: Totals, summary: str = "mean"
) -> Any:
    """The estimate of the bound from this batch at `shared`, as terms to be added up in double precision. Of points, their log density."""
    if summary == "mean":
        return obj.shared_bound(problem.model, hyper, shared), totals.bound
    return obj.shared_value(problem.model, hyper, shared, summary), totals.bound


def first_natural(problem: obj.Problem, key: jax.Array, start: dict[str, Any]) -> Sites:
    """Where the global sites begin: given by the user, or the model's random start."""
    first = problem.model.init(key, problem.hyper, problem.data)
    return {site: start.get(site, first[site]) for site in problem.model.shared}


class State(NamedTuple):
    """Natural parameters of the global sites, hyper-parameters, steps taken, and what else an engine keeps (svi: the adaptive rate's averages)."""

    shared: Sites
    hyper: Any
    step: int
    adaptive: Any = None


def algorithm(
    problem: obj.Problem,
    step: Callable[..., tuple[Any, Any]],
    first: Callable[[Sites], Any] | None = None,
) -> Algorithm:
    """An engine on batches: `step`, from the model's start or the user's, to a distribution whose rows are solved when asked for.

    first: (natural parameters) -> state, for engines that keep more than `State`.
    """

    def init(key: jax.Array, start: dict[str, Any]) -> Any:
        shared = first_natural(problem, key, start)
        return State(shared, problem.hyper, 0) if first is None else first(shared)

    def posterior(state: Any) -> Variational:
        return Variational(problem._replace(hyper=state.hyper), state.shared)

    return Algorithm(init, step, posterior)


WEIGHTS = {
    "geometric": "mean",
    "mean": "log_mode",
}  # the summary of q that each means: E[log x], or the point whose logarithm is log E[x]


def averages(family: Any) -> bool:
    """Whether a positive variable's mean can stand for it in logarithms: Dirichlet, gamma and beta."""
    return family.has_density and any(jax.tree.leaves(family.base))


def check_weights(problem: obj.Problem, weights: str) -> None:
    """What stands for the global sites while rows are solved.

    "geometric": exp E[log x], with which a step is one on the bound (T 10). "mean": E[x], as in collapsed inference, while rows keep E[log x]: what
    is ascended is then no bound of the evidence (log E[x] is above E[log x]), and often predicts better.
    """
    if weights not in WEIGHTS:
        raise unknown("weights", weights, WEIGHTS)
    unfit = [site for site in problem.model.shared if not averages(problem.model.families[site])]
    if weights == "mean" and unfit:
        raise InputError(
            f'weights="mean" is for Dirichlet, gamma and beta global sites, and {unfit[0]} of {problem.model.name} is none: leave weights out.'
        )


def learning_rate(tau: float, kappa: float, time: float) -> float:
    """(tau + t)^-kappa."""
    return (tau + time) ** -kappa


def check_schedule(options: Any) -> None:
    """A rate that starts at one or below and falls."""
    if options.kappa > 1 or (options.tau < 1 and options.kappa > 0):
        raise InputError(
            f"The rate (tau + t)^-kappa needs tau >= 1 and 0 <= kappa <= 1, not tau={options.tau}, kappa={options.kappa}."
        )
    if getattr(options, "tolerance", 0) > 0 and getattr(options, "bound_every", 1) == 0:
        raise InputError(
            "tolerance stops by the bound, but bound_every=0 never evaluates it: set bound_every to at least 1."
        )


def settle_batches(options: Any, data: Any, num_updates: int = 500) -> Any:
    """Batches and passes that suit the number of rows, where the user left them open."""
    size = min(options.batch_size or min(256, -(-data.num_rows // 8)), data.num_rows)
    steps_per_epoch = -(-data.num_rows // size)
    return options._replace(
        batch_size=size, num_epochs=options.num_epochs or max(3, -(-num_updates // steps_per_epoch))
    )
