r"""Steps on batches of rows: solve the rows on every device, then update the global sites.

$$ \eta \leftarrow (1 - \rho)\,\eta_{\mathrm{anchor}}
+ \rho\,\Big(\eta_{\mathrm{prior}} + \frac{N}{|B|} \sum_{n \in B} \mathbb{E}[t_n]\Big) $$

This is T(10) and T(14) of Theis & Hoffman (T). With the current parameters as the anchor it is a
natural-gradient step. With a fixed anchor, repeated, it is the inner loop of the trust region. With
$\rho = 1$ it is coordinate ascent on the batch. Global sites are updated in turn, which differs
from an update of all at once only if the prior couples them.

With `summary` "mode" or "log_mode" the same steps act on points instead of means.

`algorithm(..., averages=True)` answers with an average over the last steps $s \le t$, with weights
that grow as $s^7$ (polynomial-decay averaging, Shamir & Zhang 2013). It needs no length of the run.
The noise of batches averages out, so that the rate need not fall fast, and steps stay long enough
to climb as far as sweeps over all rows do. A batch of all rows has no noise and is not averaged.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import devices
from inference.core import objective as obj
from inference.core.engine import Algorithm, Engine
from inference.core.posteriors import Variational
from pp_models.data.batches import Batch
from pp_models.elimination.primitive import UNIFORM
from pp_models.errors import InputError
from pp_models.model import Model, Sites

# The summary of q that stands for a global site: E[log x], or the point whose log is log E[x].
WEIGHTS = {"geometric": "mean", "mean": "log_mode"}
OPEN = -1.0  # a kappa that depends on the size of the data
LEAST_KAPPA = 0.3
POWER = 7.0  # of the averages' weights: half of the weight is on the last twelfth of the steps


class Share(NamedTuple):
    """One device's rows, solved given the global sites.

    gradient:   d log_local / d mu of the global sites
    bound:      (log_local, entropy of the rows), or () if not asked for
    local:      the rows' natural parameters; their values if `Setting.values`
    iterations: iterations of the rows' fixed point, summed over rows
    rows:       number of rows
    """

    gradient: Sites
    bound: tuple[jax.Array, ...]
    local: Sites
    iterations: jax.Array
    rows: jax.Array


SUMS = ("gradient", "bound", "iterations", "rows")  # what is added up over devices


class Setting(NamedTuple):
    """The static arguments of `solve_share`; see `solve`."""

    model: Any
    bound: bool = False
    even: bool = False
    summary: str = "mean"
    weights: str = "geometric"
    values: bool = False
    drawn: bool = False


def statistics(model: Model, values: Sites) -> Sites:
    """t(x) of the sites' values."""
    return {site: model.families[site].stats(x) for site, x in values.items()}


def solve_share(setting: Setting, common: Any, own: Any) -> Share:
    """One device's part of `solve`."""
    model, summary = setting.model, setting.summary
    (hyper, shared, options), (batch, start) = common, own
    if start is None:
        begin = obj.start_local(model, hyper, batch, summary)
    else:
        begin = statistics(model, start) if setting.values else obj.summarise(model, start, summary)
    if summary not in ("mode", "log_mode") and not setting.drawn:
        shared = obj.summarise(model, shared, WEIGHTS[setting.weights])
    key = UNIFORM if setting.even else None
    part = obj.local_part(model, hyper, shared, batch, begin, options, summary, key)
    local = part.natural
    if setting.values:
        local = {site: model.families[site].value(t) for site, t in part.stats.items()}
    bound = (part.value, part.entropy) if setting.bound else ()
    iterations = jnp.sum(part.info.iterations * batch.mask)
    return Share(part.gradient, bound, local, iterations, jnp.sum(batch.mask))


class Solved(NamedTuple):
    """The rows of a step, solved on every device.

    gradients:  each device's `Share.gradient`, on the first one; of several processes their sum
    sums:       each device's bound, iterations and rows, likewise
    scale:      N / |B|, and from here on only if N is given
    bound:      terms of the bound, or of its estimate; of points, of the log density; if asked for
    iterations: iterations of the rows' fixed point, mean over rows
    """

    problem: obj.Problem
    hyper: Any
    batches: Sequence[Batch]
    shares: tuple[Share, ...]
    gradients: tuple[Sites, ...]
    sums: tuple[Any, ...]
    scale: Any = 1.0
    bound: Any = ()
    iterations: Any = None

    @property
    def local(self) -> tuple[Sites, ...]:
        return tuple(share.local for share in self.shares)

    @property
    def positions(self) -> tuple[jax.Array, ...]:
        return tuple(batch.positions for batch in self.batches)


def solve(
    problem, hyper, shared, batches, rows, present=None, start=None, drawn=None, **setting
) -> Solved:
    r"""Run the rows of every device's batch to their fixed point.

    shared:  natural parameters of the global sites; of points, their statistics
    rows:    `RowOptions`
    present: number of rows of the data set, N; None leaves the rows unscaled
    start:   `Share.local` to begin with; None for the model's starting point
    drawn:   statistics of a draw of the global sites, given which rows are solved; None for q's
    setting: fields of `Setting`; `even` spreads auxiliaries evenly ($\phi = 1/K$)
    """
    own = list(zip(batches, start or [None] * len(batches), strict=True))
    static = Setting(problem.model, drawn=drawn is not None, **setting)
    common = hyper, shared if drawn is None else drawn, rows
    given = solve_share, static, problem.devices, common, own
    shares, parts = devices.run_and_gather(*given, fields=SUMS)
    gradients, sums = tuple(part[0] for part in parts), tuple(part[1:] for part in parts)
    solved = Solved(problem, hyper, batches, shares, gradients, sums)
    if present is None:
        return solved
    scale, bound, mean = _total(sums, present)
    if static.bound:
        bound = _without_rows(static, hyper, shared), bound
    return solved._replace(scale=scale, bound=bound, iterations=mean)


def _without_rows(setting: Setting, hyper: Any, shared: Sites) -> Any:
    if setting.summary == "mean":
        return obj.shared_bound(setting.model, hyper, shared)
    return obj.shared_value(setting.model, hyper, shared, setting.summary)


@jax.jit
def _total(parts, present):
    rows = sum(count for _, _, count in parts)
    scale = present / rows
    bound = [scale * term for terms, _, _ in parts for term in terms]
    return scale, bound, sum(count for _, count, _ in parts) / rows


def _block(model, hyper, site, shared, gradients, scale, prior, summary="mean", near=None):
    """dF/dmu of one global site, shortened if it is damped; `prior` replaces the model's own."""
    stats = obj.summarise(model, shared, summary, near)  # XLA drops the sites that are not used
    own = obj.prior_gradient(model, hyper, stats)[site] if prior is None else prior[site]
    shares = (gradient[site] for gradient in gradients)
    added = jax.tree.map(lambda p, *parts: p + scale * sum(parts), own, *shares)
    return obj.shorten(model, stats, added, site)


@partial(jax.jit, static_argnames=("model",))
def _target(model, hyper, shared, gradients, scale):
    given = shared, gradients, scale, None
    return {site: _block(model, hyper, site, *given) for site in model.shared}


@partial(jax.jit, static_argnames=("model", "summary"))
def _ascend(model, hyper, shared, gradients, scale, rate, anchor, prior, summary, near):
    shared = dict(shared)
    for site in model.shared:
        target = _block(model, hyper, site, shared, gradients, scale, prior, summary, near)
        shared[site] = target if anchor is None else obj.blend(anchor[site], target, rate)
    return shared


def target(solved: Solved, shared: Sites) -> Sites:
    """dF/dmu of all global sites at `shared`, with the rows' statistics scaled up."""
    return _target(solved.problem.model, solved.hyper, shared, solved.gradients, solved.scale)


def ascend(
    solved, shared, rate=1.0, anchor=None, prior=None, summary="mean", near=None, gradients=()
) -> Sites:
    """(1 - rate) anchor + rate target, each global site given the new values of those before it.

    anchor:    None for the target itself
    prior:     natural parameters that replace the model's prior
    near:      statistics near the result, for families that search for their point
    gradients: statistics that replace those of the solved rows
    """
    parts = gradients or solved.gradients
    given = solved.hyper, shared, parts, solved.scale, rate, anchor, prior, summary, near
    return _ascend(solved.problem.model, *given)


# The engines on batches ---------------------------------------------------------------------------


class Info(NamedTuple):
    """bound: terms of the bound, or of its estimate, to be added up."""

    bound: Any


class State(NamedTuple):
    """Natural parameters of the global sites.

    adaptive: the state of the adaptive rate
    average:  (natural parameters, hyper-parameters or None), averaged over the last steps
    parting:  number of the first steps that part the factors (`svi`)
    """

    shared: Sites
    hyper: Any
    step: int
    adaptive: Any = None
    average: Any = None
    parting: int = 0


def first_natural(problem: obj.Problem, key: jax.Array, start: dict[str, Any]) -> Sites:
    """The global sites' first natural parameters: the user's, or the model's random start."""
    first = problem.model.init(key, problem.hyper, problem.data)
    return {site: start.get(site, first[site]) for site in problem.model.shared}


@jax.jit
def _average(average, new, number):
    share = (POWER + 1) / (POWER + number)
    return jax.tree.map(lambda a, x: a + share * (x - a), average, new)


def averaged(state: State, before: State, learns: bool) -> State:
    """The state with the average over the steps so far, `before` being the state before the step.

    learns: whether hyper-parameters are learned, and averaged like the sites
    """
    new = state.shared, state.hyper if learns else None
    if before.average is not None:
        new = _average(before.average, new, float(state.step))
    return state._replace(average=new, parting=before.parting)


def algorithm(
    problem: obj.Problem,
    step: Any,
    first: Any = None,
    averages: bool = False,
    answer: Callable[..., Any] = Variational,
) -> Algorithm:
    """An engine on batches. Its posterior solves rows when asked for them.

    first:    (natural parameters) -> state, for engines with a state of their own
    averages: whether the answer is the average over the last steps
    answer:   (problem, natural parameters) -> its posterior
    """

    def init(key, start):
        shared = first_natural(problem, key, start)
        return State(shared, problem.hyper, 0) if first is None else first(shared)

    def averaging_step(key, state, batches):
        new, info = step(key, state, batches)
        return averaged(new, state, bool(problem.learn)), info

    def posterior(state):
        shared, hyper = state.shared, state.hyper
        if averages and state.average is not None:
            shared, learned = state.average
            hyper = learned if problem.learn else hyper
        return answer(problem._replace(hyper=hyper), shared)

    return Algorithm(init, averaging_step if averages else step, posterior)


def averaging(problem: obj.Problem, options: Any, step: Any, first: Any = None) -> Algorithm:
    """`algorithm` with an average for an answer, unless a batch holds all rows."""
    check_weights(problem.model, options.weights)
    return algorithm(problem, step, first, options.batch_size < problem.data.num_rows)


def has_geometric_mean(family: Any) -> bool:
    """Whether the mean of a positive variable can replace its geometric mean."""
    return family.has_density and any(jax.tree.leaves(family.base))


def check_weights(model: Model, weights: str) -> None:
    """Refuse `weights` that the model's global sites do not have."""
    for site in model.shared if weights == "mean" else ():
        if not has_geometric_mean(model.families[site]):
            raise InputError(
                'weights="mean" needs Dirichlet, gamma or beta global sites, which '
                f"{site} of {model.name} is not: leave weights out."
            )


def check_schedule(options: Any) -> None:
    """Refuse a learning rate that begins above 1 or rises, and a tolerance without a bound."""
    scheduled = "kappa" in options._fields
    is_open = scheduled and options.kappa == OPEN
    wrong = scheduled and not is_open and not 0 <= options.kappa <= 1
    if wrong or (scheduled and options.tau < 1 and options.kappa != 0):
        raise InputError(
            "The rate (tau + t)^-kappa needs tau >= 1 and 0 <= kappa <= 1, not "
            f"tau={options.tau}, kappa={options.kappa}."
        )
    if getattr(options, "tolerance", 0) > 0 and getattr(options, "bound_every", 1) == 0:
        raise InputError(
            "tolerance stops by the bound, but bound_every=0 never evaluates it: set bound_every "
            "to at least 1."
        )


def fill_batch_size(options: Any, data: Any, share: int = 8, most: int = 256) -> Any:
    """Set an open `batch_size` to a share of the rows, at most `most`."""
    size = options.batch_size or min(most, -(-data.num_rows // share))
    return options._replace(batch_size=min(size, data.num_rows))


def fill_batches(options: Any, data: Any, num_updates: int = 500) -> Any:
    """Set an open `batch_size`, and an open `num_epochs` to about `num_updates` steps."""
    options = fill_batch_size(options, data)
    steps_per_epoch = -(-data.num_rows // options.batch_size)
    epochs = options.num_epochs or max(3, -(-num_updates // steps_per_epoch))
    return options._replace(num_epochs=epochs)


def fill_rate(options: Any, data: Any, num_updates: int, most: float) -> Any:
    """`fill_batches`, and an open `kappa`.

    Where a pass has few steps the rate falls slowly, so that as many passes climb as far as sweeps
    would. Where it has many, such a rate would forget all rows but the last.
    """
    options = fill_batches(options, data, num_updates)
    if options.kappa != OPEN:
        return options
    steps_per_epoch = -(-data.num_rows // options.batch_size)
    kappa = min(most, max(LEAST_KAPPA, math.log(steps_per_epoch) / 8))
    return options._replace(kappa=kappa)


# An engine that learns global sites, and hyper-parameters, from batches.
engine = partial(
    Engine,
    kind="variational",
    rows="batch",
    check=check_schedule,
    init="natural",
    settle=fill_batches,
    learns=True,
)
