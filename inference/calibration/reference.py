"""Reference posteriors: draws that meet written criteria, stored with the data, the recipe and the figures they reached.

A file holds everything another tool needs to be judged by it: the data, the hyper-parameters, the model's equations, draws with aligned factors,
means, sds and quantiles of every quantity from the whole run with their Monte-Carlo errors, and how all of it was made. The criteria:

    convergence    rank-normalised split R-hat below 1.01 of every quantity, invariant and aligned, of both samplers
    precision      bulk and tail effective sample size of at least 4,000 of every quantity (1,000 in the second sampler)
    no divergences in any run of NUTS or HMC
    agreement      the two samplers' means, and their sds, differ by no more Monte-Carlo standard errors than the largest of as many normal numbers
                   exceeds with probability 0.01
    density        the log joint density of the stored draws, computed anew, is the stored one

Arrays of a file (`numpy.load(path)`, no pickle): header (JSON as bytes), data/..., draws/SITE (chains, draws, ...) in single precision, log_joint,
pivot/SITE, first/NAME and second/NAME (one number per quantity of header["labels"], of the samplers' whole runs), invariant (which no relabelling
changes).
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.stats

from inference.calibration import runs as reference_runs
from inference.calibration.recipes import RECIPES, WITHOUT, Recipe
from inference.calibration.runs import SUMMARY, Run, flatten
from inference.core.provenance import versions
from inference.core import align
from inference.io import archives
from inference.io.fits import check_sizes, is_whole, require, usable
from inference.run.fit import Fit, make_problem
from pp_models import discovery
from pp_models.data import types as data_
from pp_models.data.files import write_whole
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown
from pp_models.model import value_shapes

FORMAT = 1
MOST_BYTES = 500_000  # of a file
DRAWS_BYTES = 330_000  # of them, for draws
MOST_DRAWS = 500  # stored per chain
MAX_RHAT = 1.01
MIN_ESS = 4000
MIN_ESS_SECOND = 1000
FALSE_ALARM = 0.01  # over all quantities, of each test of agreement
DENSITY_ERROR = 1e-4  # relative, of draws stored in single precision


class Reference(NamedTuple):
    """A reference posterior.

    draws:     site -> (chains, draws, ...) of the first sampler, aligned, evenly thinned
    log_joint: (chains, draws) of them
    pivot:     site -> value: what draws were aligned to
    labels:    of the quantities, e.g. "beta[2, 0]"; invariant: (quantities,) whether no relabelling changes them
    first, second: `reference_runs.SUMMARY` of every quantity, of the two samplers' whole runs
    recipe:    samplers, options, seeds, versions, data hash, divergences
    """

    model: str
    hyper: dict[str, Any]
    data: Data
    draws: dict[str, np.ndarray]
    log_joint: np.ndarray
    pivot: dict[str, np.ndarray]
    labels: list[str]
    invariant: np.ndarray
    first: dict[str, np.ndarray]
    second: dict[str, np.ndarray]
    recipe: dict[str, Any]

    @property
    def problem(self) -> Any:
        return make_problem(self.model, self.data, self.hyper, devices=jax.local_devices()[:1])


class Criterion(NamedTuple):
    """One line of `check`: what was asked, the limit in words, the figure reached, and whether it is met."""

    name: str
    limit: str
    figure: float
    met: bool


def find_recipe(model_name: str) -> Recipe:
    """How a model's reference is made; a sentence where there is none."""
    model = discovery.load(model_name)
    if model_name in WITHOUT:
        raise InputError(f"There is no reference posterior: {WITHOUT[model_name]}.")
    if model_name in RECIPES:
        return RECIPES[model_name]
    if not model.proper(model.example(jax.random.key(0))[0]):
        raise InputError(
            f"There is no reference posterior: {model_name} has no proper prior with its example's hyper-parameters."
        )
    samplers = {"nuts": {"num_samples": 4000, "num_chains": 4, "target_accept": 0.95}}
    other: dict[str, Any] = {
        "hmc": {
            "num_samples": 4000,
            "num_warmup": 1500,
            "num_chains": 4,
            "target_accept": 0.9,
            "trajectory_length": 2.0,
        }
    }
    if not model.damped:
        other = {"gibbs": {"num_samples": 3000, "num_warmup": 2000, "num_chains": 4, "thin": 20}}
    return Recipe(lambda rng: _example(model, rng), 0, samplers | other)


def _example(model: Any, rng: np.random.Generator) -> tuple[dict[str, Any], Data]:
    hyper, data = model.example(jax.random.key(int(rng.integers(2**31))))
    return hyper._asdict(), data


# Making ------------------------------------------------------------------------------------------------------------------------


def make(
    model_name: str,
    seed: int = 1,
    recipe: Recipe | None = None,
    progress: Any = None,
    path: Path | None = None,
) -> Reference:
    """Run both samplers, in double precision, and put a reference together. `check` says whether it deserves the name.

    path: where it is going to be saved, and where samplers keep their state beside (`checkpoints_of`): interrupted, the same call goes on.
    """
    recipe = find_recipe(model_name) if recipe is None else recipe
    hyper, data = recipe.problem(np.random.default_rng(recipe.seed))
    hyper = {name: list(x) if isinstance(x, tuple) else x for name, x in hyper.items()}
    with jax.enable_x64(True):
        key = jax.random.key(seed)
        runs = [
            reference_runs.run(
                model_name,
                data,
                hyper,
                sampler,
                options,
                jax.random.fold_in(key, i),
                progress,
                checkpoint,
            )
            for i, ((sampler, options), checkpoint) in enumerate(
                zip(recipe.samplers.items(), checkpoints_of(recipe, path), strict=True)
            )
        ]
        problem = make_problem(model_name, data, hyper, devices=jax.local_devices()[:1])
        pivot = _pivot(problem.model, runs[0])
        aligned = [align.align_draws(problem.model, one.draws, pivot) for one in runs]
        found = [
            reference_runs.quantities(problem, x, one.log_joint)
            for x, one in zip(aligned, runs, strict=True)
        ]
        summaries = [reference_runs.summarise(one.values) for one in found]
    samplers = [
        {
            "sampler": name,
            "options": dict(options),
            "key": [seed, i],
            "divergences": one.divergences,
        }
        for i, ((name, options), one) in enumerate(zip(recipe.samplers.items(), runs, strict=True))
    ]
    record = {
        "samplers": samplers,
        "data_seed": recipe.seed,
        "seed": seed,
        "data_hash": data.hash,
        "versions": versions(),
        "precision": "float64",
    }
    record["pivot"] = (
        f"the mean of the draws of {samplers[0]['sampler']}, first aligned to its draw of highest log joint density"
    )
    keep = _kept(aligned[0])
    draws = {site: np.asarray(x[:, keep], np.float32) for site, x in aligned[0].items()}
    log_joint = _density(model_name, data, hyper, draws)
    return Reference(
        model_name,
        hyper,
        data,
        draws,
        log_joint,
        pivot,
        found[0].labels,
        found[0].invariant,
        summaries[0],
        summaries[1],
        record,
    )


def checkpoints_of(recipe: Recipe, path: Path | None) -> list[Path | None]:
    """Of each sampler, beside the reference."""
    return [
        None if path is None else path.with_name(f"{path.name}.{sampler}.checkpoint")
        for sampler in recipe.samplers
    ]


def _pivot(model: Any, run: Run) -> dict[str, np.ndarray]:
    flat = flatten(run.draws)
    best = int(np.argmax(run.log_joint))
    pivot = align.common_labels(model, flat, {site: x[best] for site, x in flat.items()})[1]
    return {site: np.asarray(x, np.float64) for site, x in pivot.items()}


def _kept(aligned: Mapping[str, np.ndarray]) -> np.ndarray:
    """Evenly spaced draws of each chain, as many as a small file holds."""
    chains, count = next(iter(aligned.values())).shape[:2]
    numbers = sum(int(np.prod(x.shape[2:])) for x in aligned.values())
    kept = max(1, min(MOST_DRAWS, count, DRAWS_BYTES // (4 * numbers * chains)))
    return np.linspace(0, count - 1, kept).astype(int)


def _density(
    model_name: str, data: Data, hyper: dict[str, Any], draws: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The log joint density of draws as they are stored, in double precision."""
    chains, count = next(iter(draws.values())).shape[:2]
    with jax.enable_x64(True):
        problem = make_problem(model_name, data, hyper, devices=jax.local_devices()[:1])
        fit = Fit(problem, "reference", {}, None, {}, 0.0)  # type: ignore[arg-type]
        return fit.log_joint(
            {site: np.asarray(x, np.float64) for site, x in flatten(draws).items()}
        ).reshape(chains, count)


# Judging -----------------------------------------------------------------------------------------------------------------------


def largest_difference(num_quantities: int, false_alarm: float = FALSE_ALARM) -> float:
    """What the largest of so many standard normal numbers exceeds, in size, with probability of at most `false_alarm`."""
    return float(scipy.stats.norm.isf(false_alarm / (2 * num_quantities)))


def check(reference: Reference, seed: int | None = None, progress: Any = None) -> list[Criterion]:
    """Every criterion with its figure, from what is stored. With a `seed`, both samplers are run anew too, and held to what is stored."""
    out = []
    for which, summary, least in (
        ("first", reference.first, MIN_ESS),
        ("second", reference.second, MIN_ESS_SECOND),
    ):
        name = _sampler(reference, which)
        for group, members in (
            ("invariant", reference.invariant),
            ("aligned", ~reference.invariant),
        ):
            if members.any():
                out.append(
                    _below(f"{name}: R-hat, {group}", summary["rhat"][members].max(), MAX_RHAT)
                )
                out += [
                    _at_least(
                        f"{name}: {kind} ESS, {group}", summary[f"ess_{kind}"][members].min(), least
                    )
                    for kind in ("bulk", "tail")
                ]
    divergences = [
        x["divergences"] for x in reference.recipe["samplers"] if x["divergences"] is not None
    ]
    out.append(Criterion("divergences", "none", float(sum(divergences)), sum(divergences) == 0))
    limit = largest_difference(len(reference.labels))
    for which in ("mean", "sd"):
        worst = np.abs(reference_runs.differences(reference.first, reference.second, which)).max()
        out.append(
            _below(
                f"samplers agree: largest difference of {which}s, in standard errors", worst, limit
            )
        )
    again = _density(reference.model, reference.data, reference.hyper, reference.draws)
    out.append(
        _below(
            "log joint density, computed anew: relative difference",
            _relative(again, reference.log_joint),
            DENSITY_ERROR,
        )
    )
    return out if seed is None else out + check_again(reference, seed, progress)


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.max(np.abs(one - other) / (1 + np.abs(other))))


def check_again(
    reference: Reference,
    seed: int,
    progress: Any = None,
    shorter: int = 1,
    false_alarm: float = FALSE_ALARM,
) -> list[Criterion]:
    """Both samplers run anew from another seed, `shorter` times fewer draws: their means and sds agree with the stored ones of the first."""
    out = []
    limit = largest_difference(len(reference.labels), false_alarm)
    for i, one in enumerate(reference.recipe["samplers"]):
        options = one["options"] | {"num_samples": one["options"]["num_samples"] // shorter}
        with jax.enable_x64(True):
            key = jax.random.fold_in(jax.random.key(seed), 100 + i)
            found = reference_runs.run(
                reference.model,
                reference.data,
                reference.hyper,
                one["sampler"],
                options,
                key,
                progress,
            )
            aligned = align.align_draws(reference.problem.model, found.draws, reference.pivot)
            summary = reference_runs.summarise(
                reference_runs.quantities(reference.problem, aligned, found.log_joint).values
            )
        for which in ("mean", "sd"):
            worst = np.abs(reference_runs.differences(reference.first, summary, which)).max()
            out.append(
                _below(
                    f"{one['sampler']} run anew: largest difference of {which}s, in standard errors",
                    worst,
                    limit,
                )
            )
    return out


def _sampler(reference: Reference, which: str) -> str:
    return reference.recipe["samplers"][("first", "second").index(which)]["sampler"]


def _below(name: str, figure: Any, limit: float) -> Criterion:
    return Criterion(name, f"below {limit:.4g}", float(figure), bool(figure < limit))


def _at_least(name: str, figure: Any, limit: float) -> Criterion:
    return Criterion(name, f"at least {limit:,}", float(figure), bool(figure >= limit))


def describe(reference: Reference) -> str:
    """What it is, how it was made, and the criteria with the figures reached."""
    chains, kept = reference.log_joint.shape
    data = reference.data
    hyper = ", ".join(f"{name} = {value}" for name, value in reference.hyper.items())
    criteria = check(reference)
    width = max(len(one.name) for one in criteria)
    size = f"{data.kind}, {data.num_rows} x {data.num_columns}"
    lines = [
        f"{reference.model}: {discovery.load(reference.model).title}",
        f"  data: {size}, hash {data.hash[:12]}",
    ]
    lines += [f"  hyper-parameters: {hyper}"]
    for one in reference.recipe["samplers"]:
        options = ", ".join(f"{name} = {value}" for name, value in one["options"].items())
        lines.append(f"  {one['sampler']}: {options}")
    lines += [
        f"  {len(reference.labels)} quantities, {chains} x {kept} draws stored; pivot: {reference.recipe['pivot']}",
        "",
    ]
    lines += [
        f"  {one.name:<{width}}  {one.figure:>10.4g}  {one.limit:<15} {'met' if one.met else 'NOT MET'}"
        for one in criteria
    ]
    return "\n".join(lines)


# Files -------------------------------------------------------------------------------------------------------------------------


def save(reference: Reference, path: str | Path) -> Path:
    """Write a reference; the file appears whole or not at all."""
    model = discovery.load(reference.model)
    equations = sys.modules[model.log_local.__module__].__doc__ or ""
    header = {
        "format": FORMAT,
        "what": "reference posterior",
        "model": reference.model,
        "title": model.title,
        "equations": equations.strip(),
    }
    header |= {
        "kind": reference.data.kind,
        "hyper": reference.hyper,
        "labels": reference.labels,
        "recipe": reference.recipe,
    }
    header["criteria"] = [one._asdict() for one in check(reference)]
    arrays = {"log_joint": reference.log_joint, "invariant": reference.invariant}
    arrays |= {f"data/{name}": x for name, x in _data_arrays(reference.data).items()}
    arrays |= {f"draws/{site}": x for site, x in reference.draws.items()} | {
        f"pivot/{site}": x for site, x in reference.pivot.items()
    }
    for which, summary in (("first", reference.first), ("second", reference.second)):
        arrays |= {f"{which}/{name}": np.asarray(summary[name], np.float32) for name in SUMMARY}
    return write_whole(Path(path), lambda file: archives.write(file, header, arrays))


def load(path: str | Path) -> Reference:
    """Read a reference; a missing, truncated or foreign file is refused in a sentence."""
    path = Path(path)
    header, arrays = archives.read(path, "reference posterior", FORMAT)
    try:
        if header["what"] != "reference posterior":
            raise KeyError("what")
        groups: dict[str, dict[str, np.ndarray]] = {
            name: {} for name in ("data", "draws", "pivot", "first", "second")
        }
        for name, x in arrays.items():
            if "/" in name:
                groups[name.split("/", 1)[0]][name.split("/", 1)[1]] = x
        with usable(path, "reference posterior"):
            return _checked(path, header, arrays, groups)
    except KeyError as error:
        raise InputError(
            f"{path} is not a reference posterior (it lacks {error}): make one with python -m pp_models reference MODEL."
        ) from error


def _checked(
    path: Path,
    header: dict[str, Any],
    arrays: Mapping[str, np.ndarray],
    groups: dict[str, dict[str, np.ndarray]],
) -> Reference:
    """The reference, if all parts of it fit together."""
    for name, kind in {
        "model": str,
        "hyper": dict,
        "labels": list,
        "recipe": dict,
        "kind": str,
    }.items():
        require(isinstance(header.get(name), kind), f"its header has no {name}")
    require(header["kind"] in data_.KINDS, "it does not say what kind of data it is of")
    check_sizes(header["hyper"], arrays)
    data, recipe = _make_data(header["kind"], groups.pop("data")), header["recipe"]
    if data.hash != recipe.get("data_hash"):
        raise InputError(
            f"{path} holds other data than its recipe says (their hashes differ): it was altered; make it anew."
        )
    samplers = recipe.get("samplers")
    require(
        isinstance(samplers, list) and len(samplers) == 2 and all(map(_is_sampler, samplers)),
        "its recipe does not name two samplers",
    )
    require(
        isinstance(recipe.get("pivot"), str), "its recipe does not say what draws were aligned to"
    )
    out = Reference(
        header["model"], header["hyper"], data, labels=header["labels"], recipe=recipe,
        log_joint=arrays["log_joint"], invariant=arrays["invariant"], **groups,
    )  # fmt: skip
    problem = out.problem
    shapes = value_shapes(problem.model, problem.hyper, data)
    for found in (out.draws, out.pivot):
        require(
            found.keys() == shapes.keys()
            and all(x.dtype.kind == "f" and np.all(np.isfinite(x)) for x in found.values()),
            "its sites are odd",
        )
    size = out.log_joint.shape
    require(
        out.log_joint.dtype.kind == "f"
        and len(size) == 2
        and min(size) > 0
        and np.all(np.isfinite(out.log_joint)),
        "its log joint is odd",
    )
    good = all(
        out.draws[site].shape == (*size, *shape) and out.pivot[site].shape == shape
        for site, shape in shapes.items()
    )
    require(good, "its draws are of the wrong shape")
    require(
        out.labels and all(isinstance(label, str) for label in out.labels),
        "its quantities have no names",
    )
    require(
        out.invariant.dtype == bool and out.invariant.shape == (len(out.labels),),
        "it does not say which quantities are invariant",
    )
    for summary in (out.first, out.second):
        good = summary.keys() == set(SUMMARY) and all(
            x.dtype.kind == "f" and x.shape == (len(out.labels),) for x in summary.values()
        )
        require(good, "the figures of its quantities are not complete")
    return out


def _is_sampler(one: Any) -> bool:
    named = (
        isinstance(one, dict)
        and isinstance(one.get("sampler"), str)
        and isinstance(one.get("options"), dict)
        and "divergences" in one
    )
    return (
        named
        and is_whole(one["options"].get("num_samples"), 1)
        and (one["divergences"] is None or is_whole(one["divergences"]))
    )


def stored(model_name: str, folder: str | Path) -> Reference:
    """The reference of a model in a folder of them."""
    path = Path(folder) / f"{model_name}.npz"
    if not path.is_file():
        find_recipe(model_name)
        raise unknown(
            "reference posterior", model_name, [file.stem for file in Path(folder).glob("*.npz")]
        )
    return load(path)


def _data_arrays(data: Data) -> dict[str, np.ndarray]:
    if data.kind == "ratings":
        users, items = data.matrix.nonzero()
        return {
            "users": users,
            "items": items,
            "values": data.matrix.data,
            "shape": np.array(data.matrix.shape),
        }
    if data.kind == "dense":
        return {"values": np.asarray(data.values)}
    out = {"counts": data.matrix.toarray().astype(np.int32)}
    if data.kind == "text_and_votes":
        out["votes"] = _votes(data.votes)
    return out


def _votes(matrix: Any) -> np.ndarray:
    """1, 0, and nan where there was no vote; the zeros are entries of the matrix."""
    out = np.full(matrix.shape, np.nan, np.float32)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    out[rows, matrix.indices] = matrix.data
    return out


def _make_data(kind: str, arrays: Mapping[str, np.ndarray]) -> Data:
    if kind == "ratings":
        rows, columns = (int(x) for x in arrays["shape"])
        require(
            max(rows, columns) <= 10_000_000 + 10 * len(arrays["values"]),
            "its data have too many rows or columns",
        )
        return data_.ratings(
            arrays["users"], arrays["items"], arrays["values"], shape=(rows, columns)
        )
    if kind == "dense":
        return data_.dense(arrays["values"])
    if kind == "text_and_votes":
        return data_.text_and_votes(arrays["counts"], arrays["votes"])
    return data_.counts(arrays["counts"])
