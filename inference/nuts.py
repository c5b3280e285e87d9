"""Stock NumPyro NUTS on the model's `generate`: the reference that shares no code with F."""

from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Draws
from inference.stock import check_stock


class Options(NamedTuple):
    """num_samples: draws kept per chain. num_warmup: adaptation. num_chains: in parallel where devices allow. target_accept: of the sampler."""

    num_samples: int = 1000
    num_warmup: int = 1000
    num_chains: int = 2
    target_accept: float = 0.8


class Info(NamedTuple):
    """divergences: divergent transitions in all chains; num_leapfrog: mean per draw."""

    divergences: Any
    num_leapfrog: Any


def build(problem: obj.Problem, options: Options) -> Algorithm:
    check_stock(problem, "nuts", problem.data.num_rows)

    def init(key, start):
        return None

    def step(key, state, batches):
        kernel = NUTS(problem.model.generate, target_accept_prob=options.target_accept)
        parallel = len(jax.local_devices()) >= options.num_chains
        sampler = MCMC(
            kernel,
            num_warmup=options.num_warmup,
            num_samples=options.num_samples,
            num_chains=options.num_chains,
            chain_method="parallel" if parallel else "sequential",
            progress_bar=False,
        )
        batch = problem.data.pack()
        sampler.run(key, problem.hyper, batch, extra_fields=("diverging", "energy", "num_steps", "accept_prob", "potential_energy"))
        sites = sampler.get_samples(group_by_chain=True)
        extra = {name: np.asarray(x) for name, x in sampler.get_extra_fields(group_by_chain=True).items()}
        stats = {"diverging": extra["diverging"], "energy": extra["energy"], "n_steps": extra["num_steps"]}
        stats |= {"acceptance_rate": extra["accept_prob"], "lp": -extra["potential_energy"]}
        draws = {site: np.asarray(sites[site]) for site in problem.model.families}
        return (draws, stats), Info(extra["diverging"].sum(), extra["num_steps"].mean())

    def posterior(state):
        return Draws(problem, *state)

    return Algorithm(init, step, posterior)


ENGINE = Engine("nuts", Options, build, kind="draws", rows="none", sharded=False, num_steps=lambda options, problem: 1)
