"""Stock NumPyro SVI: the model's `generate` and its hand-written `guide`, Adam, and Monte-Carlo gradients of the ELBO."""

from functools import cache, lru_cache
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
from inference.core.engine import DOTTED, Algorithm, Engine, Look
from inference.core.posteriors import Variational
from inference.core.problem import likely_cause
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
    """NumPyro's, as the arrays that it is made of: steps taken first, the random key last."""

    parameters: tuple[Any, ...]


class Info(NamedTuple):
    """bound: the ELBO estimate of this step. rate: the learning rate."""

    bound: Any
    rate: Any


def settle(options: Any, data: Any) -> Any:
    return options._replace(batch_size=min(options.batch_size or data.num_rows, data.num_rows))


class OrderedELBO(Trace_ELBO):
    """NumPyro adds up the sites' terms in the order of a set of names, which every process shuffles anew: here in their order by name."""

    def __init__(self, num_particles: int) -> None:
        super().__init__(num_particles, sum_sites=False)

    def loss_with_mutable_state(self, *args: Any, **kwargs: Any) -> Any:
        found = super().loss_with_mutable_state(*args, **kwargs)
        return {**found, "loss": sum(found["loss"][site] for site in sorted(found["loss"]))}


class Program(NamedTuple):
    """NumPyro's SVI and its compiled functions, all of which take the hyper-parameters and a batch."""

    svi: SVI
    init: Any
    update: Any
    natural: Any  # of every site, from the guide's parameters
    rate: Any


@lru_cache(maxsize=32)
def _program(model: Model, learning_rate: float, num_steps: int, num_particles: int) -> Program:
    """Compiled once for fits that differ in data of one shape, values of hyper-parameters, or key only."""

    guide = guide_of(model)

    def rate(step):
        return learning_rate * 0.01 ** (step / num_steps)

    def natural(
        params, hyper, batch
    ):  # compiled, in which the draws that a trace makes are left out
        seeded = handlers.substitute(handlers.seed(guide, jax.random.key(0)), data=params)
        trace = handlers.trace(seeded).get_trace(hyper, batch)
        return {
            site: jax.tree.map(jnp.asarray, family.natural(trace[site]["fn"]))
            for site, family in model.families.items()
        }

    svi = SVI(model.generate, guide, numpyro.optim.Adam(rate), OrderedELBO(num_particles))
    return Program(svi, jax.jit(svi.init), jax.jit(svi.update), jax.jit(natural), rate)


def _check_domains(problem: obj.Problem, natural: Any) -> None:
    """Adam may leave scales that differ by more than the precision in use holds: as natural parameters they belong to no distribution."""
    for site, family in problem.model.families.items():
        try:
            with validation_enabled():
                family.distribution(natural[site])
        except ValueError as error:
            what = f"its parameters belong to no distribution any more ({str(error).rstrip('.')})"
            raise Diverged(
                f"{problem.model.name} by numpyro_svi went wrong in {site}: {what}. Likely cause: {likely_cause(problem)}."
            ) from error


def build(problem: obj.Problem, options: Any) -> Algorithm:
    size = options.batch_size
    check_stock(problem, "numpyro_svi", size)
    model, hyper = problem.model, problem.hyper
    num_steps = options.num_epochs * max(1, problem.data.num_rows // size)
    program = _program(model, options.learning_rate, num_steps, options.num_particles)

    @cache
    def structure():
        """How NumPyro's state is made of its parts. Tracing `init` also tells NumPyro how parameters are constrained."""
        return jax.tree.structure(
            jax.eval_shape(program.init, jax.random.key(0), hyper, problem.data.pack())
        )

    def init(key, start):
        state = program.init(key, hyper, problem.data.pack())
        here = devices.mine(problem.devices)[
            0
        ]  # where steps leave it: or the second one would compile anew
        return State(tuple(jax.device_put(jax.tree.leaves(state), here)))

    def step(key, state, batches):
        now = program.rate(state.parameters[0])
        after, loss = program.update(structure().unflatten(state.parameters), hyper, batches[0])
        return State(tuple(jax.tree.leaves(after))), Info(-loss, now)

    def posterior(state):
        natural = program.natural(
            program.svi.get_params(structure().unflatten(state.parameters)),
            hyper,
            problem.data.pack(),
        )
        _check_domains(problem, natural)
        return Variational(
            problem, {s: natural[s] for s in model.shared}, {s: natural[s] for s in model.local}
        )

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "numpyro_svi",
    Options,
    build,
    kind="variational",
    rows="batch",
    sharded=False,
    settle=settle,
    compared=True,
    is_quick=True,
    quick={"num_epochs": 1000},
    calibrated={"num_epochs": 1500},
    tiny={"num_epochs": 20, "num_particles": 1},
    look=Look("pink", DOTTED, "plus"),
)
