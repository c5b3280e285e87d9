"""Stock NumPyro SVI: the model's `generate` and its hand-written `guide`, Adam, and Monte-Carlo gradients of the ELBO."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO

from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Variational
from inference.stock import check_stock


class Options(NamedTuple):
    """num_epochs: passes over the data. batch_size: rows per step (0: all). learning_rate: Adam's at the start, falling to a hundredth.

    num_particles: draws per gradient.
    """

    num_epochs: int = 3000
    batch_size: int = 0
    learning_rate: float = 0.05
    num_particles: int = 1


class Info(NamedTuple):
    """bound: the ELBO estimate of this step. rate: the learning rate."""

    bound: Any
    rate: Any


def settle(options: Options, data: Any) -> Options:
    return options._replace(batch_size=min(options.batch_size or data.num_rows, data.num_rows))


def build(problem: obj.Problem, options: Options) -> Algorithm:
    size = options.batch_size
    check_stock(problem, "numpyro_svi", size)
    model, hyper = problem.model, problem.hyper
    num_steps = options.num_epochs * max(1, problem.data.num_rows // size)

    def rate(step):
        return options.learning_rate * 0.01 ** (step / num_steps)

    optimiser = numpyro.optim.Adam(rate)
    svi = SVI(lambda batch: model.generate(hyper, batch), lambda batch: model.guide(hyper, batch), optimiser, Trace_ELBO(options.num_particles))
    update = jax.jit(svi.update)

    def init(key, start):
        return jax.jit(svi.init)(key, problem.data.pack())

    def step(key, state, batches):
        now = rate(state.optim_state[0])
        state, loss = update(state, batches[0])
        return state, Info(-loss, now)

    def posterior(state):
        full = problem.data.pack()
        program = handlers.substitute(handlers.seed(model.guide, jax.random.key(0)), data=svi.get_params(state))
        trace = handlers.trace(program).get_trace(hyper, full)
        natural = {site: family.natural(trace[site]["fn"]) for site, family in model.families.items()}
        natural = jax.tree.map(jnp.asarray, natural)
        return Variational(problem, {s: natural[s] for s in model.shared}, {s: natural[s] for s in model.local})

    return Algorithm(init, step, posterior)


ENGINE = Engine("numpyro_svi", Options, build, kind="variational", rows="batch", sharded=False, settle=settle)
