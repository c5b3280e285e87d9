r"""Structured stochastic variational inference (Hoffman & Blei 2014). Rows keep their dependence on
the global sites, $q(\beta) \prod_n q(z_n \mid \beta)$.

$$ \mathcal{L} = \mathbb{E}_q\Big[\log p(\beta) - \log q(\beta) + \sum_n L_n(t(\beta))\Big], \qquad
L_n(t) = \max_{q(z_n)} \; \mathbb{E}_{q(z_n)}\big[\log p(\mathrm{row}_n)\big] + H(q(z_n)) $$

$L_n$ is $F$ of a row with its local sites and auxiliaries at their optimum given $\beta$. So
$\mathcal{L}$ is a lower bound of the evidence, and at least as high as that of mean field with the
same $q(\beta)$. Each step draws $\beta \sim q(\beta)$, solves the rows of a batch given the draw,
and moves the natural parameters $\eta$ of the global sites:

$$ \eta \leftarrow (1 - \rho_t)\,\eta + \rho_t \Big(\eta_{\mathrm{prior}}
+ \frac{N}{|B|} \sum_{n \in B} \hat g_n\Big), \qquad \rho_t = (\tau + t)^{-\kappa} $$

`gradient="averaged"` (SSVI-A) takes $\hat g_n = \partial L_n / \partial t$ at the draw, the
expected statistics of the row given $\beta$. Its fixed point is
$\eta = \eta_{\mathrm{prior}} + \mathbb{E}_q[\sum_n \partial L_n / \partial t]$. It ignores that
$L_n$ bends, so its widths are no better than those of mean field.
`gradient="exact"` (SSVI) estimates the natural gradient of $\mathcal{L}$ itself: with $\bar g$ the
statistics at $\mathbb{E}_q[t]$,

$$ \hat g_n = \bar g_n + V^{-1} \Big(\frac{\partial t}{\partial \eta}\Big)^{\!\top}
\Big(\frac{\partial L_n}{\partial t} - \bar g_n\Big), \qquad V = \operatorname{Cov}_q(t), $$

where the draw $t$ moves with $\eta$ (`families.slopes`). Global widths then account for the rows.
The default, "auto", is exact after a quarter of averaged steps. A model with a global site whose
family has no such formula (Wishart matrices, positive normals) has averaged steps only.

Use it for widths of expected data and of rows nearer to the posterior's than those of mean field,
from batches, without linear response. A step costs `num_draws` steps of `svi`, and one more if it
is exact; its noise needs small steps. Widths of single weights of topics stay too narrow, because
$q(z_n \mid \beta)$ is itself a product and so is $q(\beta)$.

The answer is the average of the natural parameters over the last steps. Rows are solved anew for
every draw of it; their means and widths average over 64 draws. `history["bound"]` estimates
$\mathcal{L}$ from the batch and its draws, without bias up to the rows' tolerance; `fit.bound` from
all rows and 64 draws, with the standard error `fit.posterior.bound_error()`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import LONG, Algorithm, Look
from inference.core.structured import Structured, draw_statistics
from inference.engines import _minibatch as mb
from inference.engines._natural_step import Info, bound_is_due, learning_rate
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Model, Sites

NUM_UPDATES = 1000
SHARE = 4  # of the steps, one part of so many is averaged before exact ones

Options = opt.compose(
    opt.batches(NUM_UPDATES),
    opt.rate(10.0, 0.7),
    opt.rows(100, 1e-3),
    opt.bound(1),
    opt.stop(0.0),
    num_draws=opt.Option(2, "draws of the global sites in each step"),
    gradient=opt.Option(
        "auto",
        'of the structured bound: "exact"; "averaged" over draws, which ignores how rows respond '
        'to a draw; or "auto", exact where the families of the global sites allow it',
        choices=("auto", "exact", "averaged"),
    ),
)


def suits(model: Model) -> str:
    if damped := sorted(model.damped & set(model.shared)):
        return (
            f"structured averages conditional updates of global sites, but {' and '.join(damped)} "
            f"of {model.name} has none in closed form: use svi."
        )
    return ""


@partial(jax.jit, static_argnames=("model",))
def exact(
    model: Model, key: jax.Array, shared: Sites, drawn: Sites, found: Any, center: Any
) -> Sites:
    """The unbiased natural gradient of the rows' part of the bound, from one draw.

    drawn: its statistics. found: each device's gradients there. center: those at E[t]
    """
    found, center = obj.add(*found), obj.add(*center)
    rest = jax.tree.map(jnp.subtract, found, center)
    keys = dict(zip(shared, jax.random.split(key, len(shared)), strict=True))
    moved = {}
    for site in model.shared:
        slope: Any = model.families[site].slope
        moved[site] = slope(keys[site], shared[site], drawn[site], rest[site])
    return obj.add(center, moved)


@partial(jax.jit, static_argnames=("model",))
def _inside(model, old, new):
    return {site: model.families[site].inside(old[site], new[site]) for site in model.shared}


@jax.jit
def _mean(parts):
    return jax.tree.map(lambda *x: sum(x) / len(x), *parts)


def has_slopes(model: Model) -> bool:
    """Whether the exact gradient is known for every global site."""
    return all(model.families[site].slope is not None for site in model.shared)


def structured_step(problem, options, key, state, batches, is_exact) -> tuple[mb.State, Info]:
    """One step; `is_exact` says by which gradient."""
    model, shared, number = problem.model, state.shared, problem.data.num_rows
    rate, evaluate = learning_rate(options, state.step), bound_is_due(options, state.step)
    rows = RowOptions(options.num_local, options.local_tolerance)
    given = problem, state.hyper, shared, batches, rows, number
    center = mb.solve(*given).gradients if is_exact else None
    gradients, bounds, iterations = [], [], []
    for one in jax.random.split(key, options.num_draws):
        draw_key, key = jax.random.split(one)
        drawn = draw_statistics(model, draw_key, shared)
        solved = mb.solve(*given, drawn=drawn, bound=evaluate)
        found = solved.gradients
        own = exact(model, key, shared, drawn, found, center) if is_exact else obj.add(*found)
        gradients.append(own)
        bounds.append(solved.bound)
        iterations.append(solved.iterations)
    new = mb.ascend(solved, shared, rate, shared, gradients=(_mean(gradients),))
    new = _inside(model, shared, new) if is_exact else new
    bound = _mean(bounds) if evaluate else None
    return mb.State(new, state.hyper, state.step + 1), Info(bound, rate, _mean(iterations))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, num_rows = problem.model, problem.data.num_rows
    able = has_slopes(model)
    if options.gradient == "exact" and not able:
        lacking = [site for site in model.shared if model.families[site].slope is None]
        raise InputError(
            f'gradient="exact" has no formula for {" and ".join(lacking)} of {model.name}: use '
            'gradient="averaged".'
        )
    steps = options.num_epochs * -(-num_rows // options.batch_size)
    first = {"exact": 0, "averaged": math.inf, "auto": steps // SHARE if able else math.inf}

    def step(key, state, batches):
        is_exact = state.step >= first[options.gradient]
        return structured_step(problem, options, key, state, batches, is_exact)

    return mb.algorithm(problem, step, averages=True, answer=Structured)


ENGINE = mb.engine(
    "structured",
    Options,
    build,
    kind="conditional",
    settle=partial(mb.fill_batches, num_updates=NUM_UPDATES),
    learns=False,
    suits=suits,
    quick={"num_epochs": 60},
    tiny={"num_epochs": 10, "batch_size": 4, "num_draws": 1},
    look=Look("sky", LONG, "star"),
)
