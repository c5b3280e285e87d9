r"""Stochastic variational inference of NumPyro: the model's `generate` and its guide, Adam, and
Monte-Carlo gradients of the ELBO.

$$ \mathrm{ELBO} = \mathbb{E}_q[\log p(x, D) - \log q(x)] \approx
\frac{1}{S} \sum_{s=1}^{S} \big[\log p(x_s, D) - \log q(x_s)\big], \qquad x_s \sim q $$

Adam's learning rate falls from `learning_rate` to a hundredth of it over the run.

Use it as a check of `cavi`, and for LDA's width: its allocations are summed out exactly. It is
slow, with thousands of passes, and holds the rows of a step as a dense matrix. Raise
`num_particles` or lower `learning_rate` if the bound keeps jumping.
"""

from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled
from numpyro.infer import SVI, Trace_ELBO

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DOTTED, Algorithm, Look
from inference.core.posteriors import Variational
from inference.core.problem import likely_cause
from inference.engines import _minibatch as mb
from inference.engines._stock import check_stock
from pp_models.errors import Diverged
from pp_models.model import Model, guide_of

Options = opt.compose(
    num_epochs=opt.Option(3000, "passes over the data"),
    batch_size=opt.Option(0, "rows per step (0: all)"),
    learning_rate=opt.Option(0.05, "Adam's at the start; it falls to a hundredth"),
    num_particles=opt.Option(1, "draws per gradient"),
)


class State(NamedTuple):
    """The leaves of NumPyro's state: steps taken first, the random key last."""

    parameters: tuple[jax.Array, ...]


class Info(NamedTuple):
    """bound: the ELBO estimate of this step."""

    bound: Any
    rate: Any


class OrderedELBO(Trace_ELBO):
    """Sums the sites' terms by name: NumPyro's order is that of a set, and changes by process."""

    def __init__(self, num_particles: int) -> None:
        super().__init__(num_particles, sum_sites=False)

    def loss_with_mutable_state(self, *args: Any, **kwargs: Any) -> Any:
        found = super().loss_with_mutable_state(*args, **kwargs)
        return {**found, "loss": sum(found["loss"][site] for site in sorted(found["loss"]))}


@lru_cache(maxsize=32)
def _program(model: Model, learning_rate: float, num_steps: int, num_particles: int) -> Any:
    """NumPyro's SVI, its `init` and `update`, (parameters) -> natural parameters, and the rate.

    Compiled once for fits that differ only in data, hyper-parameters' values or key.
    """
    guide = guide_of(model)

    def rate(step):
        return learning_rate * 0.01 ** (step / num_steps)

    def natural(params, hyper, batch):  # compiled, so that XLA drops the trace's draws
        seeded = handlers.substitute(handlers.seed(guide, jax.random.key(0)), data=params)
        trace = handlers.trace(seeded).get_trace(hyper, batch)
        return {
            site: jax.tree.map(jnp.asarray, family.natural(trace[site]["fn"]))
            for site, family in model.families.items()
        }

    svi = SVI(model.generate, guide, numpyro.optim.Adam(rate), OrderedELBO(num_particles))
    return svi, jax.jit(svi.init), jax.jit(svi.update), jax.jit(natural), rate


def _check_domains(problem: obj.Problem, natural: Any) -> None:
    """Refuse natural parameters of no distribution: scales beyond the precision in use."""
    for site, family in problem.model.families.items():
        try:
            with validation_enabled():
                family.distribution(natural[site])
        except ValueError as error:
            raise Diverged(
                f"{problem.model.name} by numpyro_svi went wrong in {site}: its parameters belong "
                f"to no distribution any more ({str(error).rstrip('.')}). Likely cause: "
                f"{likely_cause(problem)}."
            ) from error


def build(problem: obj.Problem, options: Any) -> Algorithm:
    size = options.batch_size
    check_stock(problem, "numpyro_svi", size)
    model, hyper = problem.model, problem.hyper
    num_steps = options.num_epochs * max(1, problem.data.num_rows // size)
    setting = options.learning_rate, num_steps, options.num_particles
    svi, first, update, natural_of, rate = _program(model, *setting)

    @cache
    def structure():
        """The tree of NumPyro's state. Tracing `init` also tells NumPyro the constraints."""
        state = jax.eval_shape(first, jax.random.key(0), hyper, problem.data.pack())
        return jax.tree.structure(state)

    def init(key, start):
        state = first(key, hyper, problem.data.pack())
        here = devices.mine(problem.devices)[0]  # where steps leave it: one program for all steps
        return State(tuple(jax.device_put(jax.tree.leaves(state), here)))

    def step(key, state, batches):
        after, loss = update(structure().unflatten(state.parameters), hyper, batches[0])
        return State(tuple(jax.tree.leaves(after))), Info(-loss, rate(state.parameters[0]))

    def posterior(state):
        params = svi.get_params(structure().unflatten(state.parameters))
        natural = natural_of(params, hyper, problem.data.pack())
        _check_domains(problem, natural)
        shared, local = ({s: natural[s] for s in sites} for sites in (model.shared, model.local))
        return Variational(problem, shared, local)

    return Algorithm(init, step, posterior)


ENGINE = mb.engine(
    "numpyro_svi",
    Options,
    build,
    sharded=False,
    init="none",
    settle=partial(mb.fill_batch_size, share=1, most=2**63),
    learns=False,
    sums_out=True,
    compared=True,
    is_quick=True,
    quick={"num_epochs": 1000},
    tiny={"num_epochs": 20, "num_particles": 1},
    calibrated={"num_epochs": 1500},
    look=Look("pink", DOTTED, "plus"),
)
