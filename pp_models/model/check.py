"""F held to `generate`: a model states its density twice, and the two must be the same.

`log_global` and `log_local` are compared with the log densities of NumPyro's sites, at a few draws
and on a few rows. If they differ, one input at a time is changed, a site or a hyper-parameter. The
inputs that change the difference tell which site's term is wrong.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.util import compute_log_probs

from pp_models import families as fam
from pp_models.data.types import Data
from pp_models.errors import InputError
from pp_models.model.declaration import Model, Sites
from pp_models.model.derived import example_of, sites_of
from pp_models.model.hyper import as_arrays, values_of

NUM_DRAWS = 3
MOST_ROWS, MOST_COLUMNS = 20, 30  # of the data
ROUNDING = 1e-9  # of the sum of all terms' sizes: what cancels costs double precision some digits
STEP = 0.95  # the factor by which a hyper-parameter is changed
# Programs that run three times: most of the time is compiling. On one thread, since two batched
# LAPACK calls at once, as a NumPyro distribution may make, wait for each other for ever.
FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_multi_thread_eigen": False,
}
PIECES = ("log_global", "log_local")


class Checked(NamedTuple):
    """F and NumPyro's log density at some draws, in nats.

    ours, theirs: piece of F -> (draws,)
    tolerance:    of a difference
    """

    num_rows: int
    num_columns: int
    ours: dict[str, np.ndarray]
    theirs: dict[str, np.ndarray]
    tolerance: float

    @property
    def num_draws(self) -> int:
        return len(self.ours[PIECES[0]])

    @property
    def differences(self) -> dict[str, float]:
        """The largest one of each piece, inf where only one of the two is finite."""
        return {piece: _largest(self.ours[piece] - self.theirs[piece]) for piece in PIECES}

    @property
    def difference(self) -> float:
        """The largest difference of the whole log joint density."""
        return _largest(sum(self.ours.values()) - sum(self.theirs.values()))


def _largest(differences: Any) -> float:
    sizes = np.abs(differences)
    return float(np.max(np.where(np.isnan(sizes), np.inf, sizes)))


def check_joint(model: Model, hyper: Any, data: Any) -> None:
    """Raise one sentence that names the term of F to look at, if F is not `generate`'s density.

    A model is checked once for each shape of hyper-parameters and columns.
    """
    shape = model, jax.tree.structure(hyper), data.num_columns, data.num_members
    if shape not in _CHECKED:
        compare_joint(model, hyper, data)
        _CHECKED.add(shape)


_CHECKED: set[Any] = set()


def compare_joint(
    model: Model, hyper: Any, data: Any, draws: Iterable[Sites] | None = None
) -> Checked:
    """Compare F with NumPyro's log density in double precision; raise `InputError` on a mismatch.

    draws: by default `NUM_DRAWS` of q at its start, on a part of the data
    """
    with jax.enable_x64(True):
        hyper = as_arrays(hyper)
        if draws is None:
            hyper, data = _part(model, hyper, data)
        batch = data.pack()
        if draws is None:
            draw = jax.jit(functools.partial(_draw, model), compiler_options=FAST)
            draws = [draw(hyper, batch, jax.random.key(seed)) for seed in range(NUM_DRAWS)]
        draws = list(draws)
        evaluate = jax.jit(functools.partial(_terms, model), compiler_options=FAST)
        found = [jax.tree.map(np.asarray, evaluate(hyper, values, batch)) for values in draws]
        found = [one for one in found if _comparable(one)]
        if not found:
            raise InputError(
                f"F of {model.name} cannot be compared with its `generate`: neither is finite at "
                "draws of q at its start. Look at init."
            )
        ours = {piece: np.array([one.ours[piece] for one in found]) for piece in PIECES}
        theirs = {piece: np.array([one.of(model, piece) for one in found]) for piece in PIECES}
        tolerance = ROUNDING * max(1.0, max(float(one.size) for one in found))
        checked = Checked(data.num_rows, data.num_columns, ours, theirs, tolerance)
        if max(checked.difference, *checked.differences.values()) > tolerance:
            raise InputError(_told(model, checked, evaluate, (hyper, *draws[:2], batch)))
    return checked


def _part(model: Model, hyper: Any, data: Any) -> tuple[Any, Data]:
    """A small problem: at most `MOST_ROWS` rows, evenly spaced, and the `MOST_COLUMNS` columns with
    most entries there. The model's example, where columns cannot be left out: there are
    hyper-parameters for each, or their number is in one."""
    if data.num_rows > MOST_ROWS:
        data = data.select(np.linspace(0, data.num_rows - 1, MOST_ROWS).astype(int))
    size = data.num_columns
    if size <= MOST_COLUMNS:
        return hyper, data
    if data.matrix is None or any(size in np.shape(x) for x in values_of(hyper).values()):
        own, example, _ = example_of(model)
        return as_arrays(own), example
    common = np.argsort(-np.bincount(data.matrix.indices, minlength=size), kind="stable")
    return hyper, Data(data.kind, data.matrix[:, np.sort(common[:MOST_COLUMNS])], data.votes)


def _draw(model: Model, hyper: Any, batch: Any, key: jax.Array) -> Sites:
    """A draw of q at its start. Points, which do not vary, are moved."""
    first, *keys = jax.random.split(key, 1 + len(model.families))
    natural = model.init(first, hyper, batch)
    values = {}
    for key, (site, family) in zip(keys, model.families.items(), strict=True):
        values[site] = family.value(family.sample(key, natural[site]))
        if not family.has_density:
            values[site] += 0.3 * jax.random.normal(key, values[site].shape)
    return values


class Terms(NamedTuple):
    """ours: piece of F -> its value. theirs: site -> its log density. size: of all terms of theirs,
    without signs."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    size: Any

    def of(self, model: Model, piece: str) -> float:
        """The sum of NumPyro's log densities that a piece of F states."""
        return sum(float(x) for site, x in self.theirs.items() if _piece(model, site) == piece)


def _piece(model: Model, site: str) -> str:
    return "log_global" if site in model.shared else "log_local"


def _terms(model: Model, hyper: Any, values: Sites, batch: Any) -> Terms:
    stats = {site: family.stats(values[site]) for site, family in model.families.items()}
    base = {site: fam.log_base(family, stats[site]) for site, family in model.families.items()}
    shared = {site: stats[site] for site in model.shared}
    ours = {
        "log_global": model.log_global(hyper, shared) + sum(jnp.sum(base[s]) for s in shared),
        "log_local": model.log_local(hyper, stats, batch)
        + sum(batch.sum(base[site]) for site in model.local),
    }
    logs, _ = compute_log_probs(model.generate, (hyper, batch), {}, values, sum_log_prob=False)
    theirs = {site: jnp.sum(x) for site, x in logs.items()}
    return Terms(ours, theirs, sum(jnp.sum(jnp.abs(x)) for x in logs.values()))


def _comparable(one: Terms) -> bool:
    """Whether at least one of F and NumPyro's density is finite."""
    return bool(np.isfinite(sum(one.ours.values())) or np.isfinite(sum(one.theirs.values())))


# The wrong term -------------------------------------------------------------------------------


def _told(model: Model, checked: Checked, evaluate: Any, inputs: Any) -> str:
    """The sentence about a mismatch."""
    wrong = {p: x for p, x in checked.differences.items() if not x <= checked.tolerance}
    head = f"F of {model.name} is not the log density of its `generate`: at {checked.num_draws} "
    if checked.difference <= checked.tolerance:
        return (
            f"{head}draws log_global and log_local differ from NumPyro's global and other sites by "
            f"{max(wrong.values()):.3g} nats each, in opposite directions: move the prior of a "
            "global site to log_global, and what belongs to rows to log_local."
        )
    places = [_place(model, piece, evaluate, inputs) for piece in wrong]
    return f"{head}draws they differ by up to {checked.difference:.3g} nats: {'; '.join(places)}."


def _place(model: Model, piece: str, evaluate: Any, inputs: Any) -> str:
    """Which sites' terms of a piece are wrong, found by changing one input at a time."""
    hyper, values, other, batch = inputs
    hypers = {
        name: hyper._replace(**{name: STEP * x})
        for name, x in values_of(hyper).items()
        if np.all(np.asarray(x) != 0)
    }
    changed = {name: (one, values, batch) for name, one in hypers.items()}
    changed |= {s: (hyper, {**values, s: other[s]}, batch) for s in model.families}
    before = evaluate(hyper, values, batch)
    after = {name: evaluate(*one) for name, one in changed.items()}

    def moved(read: Any) -> set[str]:
        """The inputs that a number depends on."""
        start = read(before)
        limit = ROUNDING * max(1.0, float(before.size))
        return {n for n, one in after.items() if not abs(read(one) - start) <= limit}

    own = [site for site in sites_of(model) if _piece(model, site) == piece]
    needs = {site: moved(lambda one, s=site: float(one.theirs[s])) for site in own}
    missed = moved(lambda one: float(one.ours[piece]) - one.of(model, piece))
    likely = {site: len(needs[site]) for site in own if missed <= needs[site]}
    least = min(likely.values(), default=0)
    sites = [site for site in own if not missed or likely.get(site) == least]
    sites = sites or [site for site in own if needs[site] & missed] or own
    depends = f"changes with {_listed(sorted(missed))}" if missed else "is a constant"
    return f"look at the term of {_listed(sites, 'or')} in {piece}, whose error {depends}"


def _listed(names: Iterable[str], word: str = "and") -> str:
    *rest, last = names
    return f"{', '.join(rest)} {word} {last}" if rest else last
