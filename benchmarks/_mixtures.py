"""Mixtures by trust-region and natural-gradient steps: T 4.1 and 4.2, for `trust_region.py`."""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _common import bind, pyplot, report, save

import pp_models
from inference.core import objective as obj
from inference.core.problem import make_problem
from inference.engines import _minibatch as mb
from inference.run.loop import feed, run_length
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions

COLOURS = {
    "trust_region": "C0",
    "svi": "C1",
    "memoized 500": "C2",
    "memoized 10000": "C3",
    "svb": "C4",
    "streaming_batch": "C5",
}


def finish(arguments: argparse.Namespace, figure: Any, line: dict[str, Any]) -> None:
    """Save the figure and print the line."""
    path = save(figure, Path(arguments.out) / f"{arguments.command}.png")
    report(f"trust_region {arguments.command}", {**line, "figure": path})


def run(
    model: str,
    data: Data,
    engine: str,
    hyper: Any,
    seed: int,
    probe: Any,
    **options: Any,
) -> tuple[list[float], list[Any], Any]:
    """Step an engine: (passes, `probe(problem, state)` after each pass, the final posterior)."""
    bound = bind(engine, make_problem(model, data, hyper), **options)
    algorithm, problem, known = bound.algorithm, bound.problem, (bound.engine, bound.options)
    init_key, batch_key, step_key = jax.random.split(jax.random.key(seed), 3)
    state = algorithm.init(init_key, {})
    num_steps, per_pass = run_length(*known, problem)
    passes, seen = [0.0], [probe(problem, state)]
    for step, batches in enumerate(feed(*known, problem, batch_key, num_steps)):
        state, _ = algorithm.step(jax.random.fold_in(step_key, step), state, batches)
        if (step + 1) % per_pass == 0:
            passes.append((step + 1) / per_pass)
            seen.append(probe(problem, state))
    return passes, seen, algorithm.posterior(state)


def mean_bound(data: Data) -> Any:
    """The bound per row from the rows of `data`, scaled to the problem's number of rows."""

    def probe(problem: obj.Problem, state: Any) -> float:
        hyper, total = getattr(state, "hyper", problem.hyper), 0.0
        for first in range(0, data.num_rows, 5000):
            rows = np.arange(first, min(first + 5000, data.num_rows))
            batches, options = data.shards(rows, 5000, problem.devices), RowOptions(100, 1e-3)
            solved = mb.solve(problem, hyper, state.shared, batches, options, bound=True)
            total += sum(float(term) for share in solved.shares for term in share.bound)
        prior = float(obj.shared_bound(problem.model, hyper, state.shared))
        return total / data.num_rows + prior / problem.data.num_rows

    return probe


# T 4.1 --------------------------------------------------------------------------------------------


class Records(dict):
    """Results of several seeds, a list for each figure."""

    def __init__(self) -> None:
        super().__init__(components=[], bound=[], seconds=[])

    def add(self, bound: float, components: int, seconds: float) -> None:
        self["bound"].append(round(bound, 3))
        self["components"].append(components)
        self["seconds"].append(round(seconds, 1))


def mnist(arguments: argparse.Namespace) -> None:
    """Forty Bernoulli components on digits, pixels drawn with their grey value as probability."""
    with np.load(arguments.data) as file:
        named = (name for name in ("x_train", "train_images", *file.files) if name in file.files)
        images = next(file[name] for name in named if file[name].ndim >= 2)
    grey = images.reshape(len(images), -1)[: arguments.rows].astype(np.float32)
    grey /= grey.max()
    pixels = np.random.default_rng(0).random(grey.shape) < grey
    data = pp_models.data.dense(pixels.astype(np.float32))
    settings = {
        "trust_region": {"num_epochs": 10, "num_inner": 2, "bound_every": 0},
        "svi": {"num_epochs": 20, "bound_every": 0},
    }
    probe = mean_bound(data.select(np.arange(min(10_000, data.num_rows))))
    full = mean_bound(data)
    line: dict[str, Any] = {name: Records() for name in settings}
    figure, (left, *right) = pyplot().subplots(1, 3, figsize=(15, 4.5))
    for name, axes in zip(settings, right, strict=True):
        for seed in range(arguments.seeds):
            begin = time.perf_counter()
            options = {"batch_size": 200, "kappa": 0.5, "tau": 100.0, **settings[name]}
            chosen = "bernoulli_mixture", data, name, {"num_components": 40}, seed, probe
            passes, bounds, posterior = run(*chosen, **options)
            seconds, problem = time.perf_counter() - begin, posterior.problem
            shared = {site: posterior.natural(site) for site in problem.model.shared}
            final = full(problem, argparse.Namespace(shared=shared, hyper=problem.hyper))
            weights = posterior.mean("pi")
            line[name].add(final, int((weights > 1 / 400).sum()), seconds)
            updates = np.array(passes) * (2 if name == "trust_region" else 1) * data.num_rows / 200
            left.plot(updates, bounds, color=COLOURS[name], alpha=0.7)
        tiles = posterior.mean("beta")[np.argsort(-weights)].reshape(5, 8, 28, 28)
        axes.imshow(tiles.transpose(0, 2, 1, 3).reshape(5 * 28, 8 * 28), cmap="gray_r")
        axes.set(title=f"{name}: E[beta] of the last seed", xticks=[], yticks=[])
    left.set(xlabel="updates (inner steps counted)", ylabel="bound, nats per image")
    left.set(ylim=(-175, -145), title="blue: trust region, orange: natural gradient")
    gaps = np.subtract(line["trust_region"]["bound"], line["svi"]["bound"])
    line |= {"images": data.num_rows, "least_gap": round(float(gaps.min()), 3)}
    finish(arguments, figure, line)


# T 4.2 --------------------------------------------------------------------------------------------


def photographs() -> list[np.ndarray]:
    """Grey photographs from scikit-learn, and from scikit-image if it is installed."""
    from sklearn.datasets import load_sample_images

    images = [image.mean(2) for image in load_sample_images().images]
    try:
        from skimage import data as shipped
    except ImportError:
        return images
    for name in ("astronaut", "camera", "chelsea", "coffee"):
        try:
            image = getattr(shipped, name)()
        except Exception as error:  # not shipped with this version: it would be downloaded
            print(f"{name} left out: {error}")
            continue
        images.append(image.mean(2) if image.ndim == 3 else image)
    return images


def cut(images: list[np.ndarray], num_patches: int, seed: int = 0) -> np.ndarray:
    """Random 8 x 8 patches of log intensities, standardised together."""
    rng = np.random.default_rng(seed)
    sizes = np.array([image.size for image in images], float)
    patches = []
    for image, share in zip(images, rng.multinomial(num_patches, sizes / sizes.sum()), strict=True):
        top, left = (rng.integers(0, size - 7, share) for size in image.shape)
        rows = top[:, None, None] + np.arange(8)[:, None]
        columns = left[:, None, None] + np.arange(8)
        patches.append(np.log1p(image.astype(np.float64))[rows, columns].reshape(share, 64))
    values = rng.permutation(np.concatenate(patches))
    # eight-bit intensities tie; a little noise keeps covariances of full rank
    values += rng.normal(0, 1e-2, values.shape)
    return ((values - values.mean()) / values.std()).astype(np.float32)


def patches(arguments: argparse.Namespace) -> None:
    """Fifty Gaussians with full covariances on image patches."""
    data = pp_models.data.dense(cut(photographs(), arguments.rows))
    shared = {"kappa": 0.5, "tau": 10.0, "bound_every": 0}
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "trust_region": ("trust_region", {**shared, "batch_size": 500, "num_inner": 5}),
        "svi": ("svi", {**shared, "batch_size": 500}),
        "memoized 500": ("memoized", {"batch_size": 500, "tolerance": 0.0}),
        "memoized 10000": ("memoized", {"batch_size": 10_000, "tolerance": 0.0}),
    }
    probe = mean_bound(data.select(np.arange(min(20_000, data.num_rows))))
    figure, axes = pyplot().subplots(figsize=(7, 4.5))
    line: dict[str, Any] = {}
    for name, (engine, options) in settings.items():
        line[name] = Records()
        for seed in range(arguments.seeds):
            begin = time.perf_counter()
            chosen = "gaussian_mixture", data, engine, {"num_components": 50}, seed, probe
            passes, bounds, posterior = run(*chosen, num_epochs=arguments.passes, **options)
            used = int((posterior.mean("pi") > 1 / 500).sum())
            line[name].add(bounds[-1], used, time.perf_counter() - begin)
            label = name if seed == 0 else None
            axes.plot(passes, bounds, color=COLOURS[name], alpha=0.8, label=label)
    axes.set(xlabel="passes", ylabel="bound, nats per patch")
    axes.set_title("Gaussian mixture, 50 components, 8 x 8 patches")
    top = max(max(part["bound"]) for part in line.values())
    axes.set_ylim(top - 8, top + 1)
    axes.legend()
    finish(arguments, figure, {**line, "patches": data.num_rows, "passes": arguments.passes})
