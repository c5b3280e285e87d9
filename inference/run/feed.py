"""What each step of a run is given: all rows, a batch of them, or rows of a growing stream."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from inference.core.engine import Engine
from inference.core.objective import Problem


def run_length(engine: Engine, options: Any, problem: Problem) -> tuple[int, int]:
    """Steps of the whole run, and how many of them the stopping rule averages over."""
    if engine.rows == "stream":
        return options.num_steps, 1
    if engine.rows not in ("batch", "partition"):
        return engine.num_steps(options, problem), 1
    whole, rest = divmod(problem.data.num_rows, options.batch_size)
    per_epoch = whole + (rest > 0 and engine.sharded)  # stock engines drop a last, smaller batch
    return options.num_epochs * per_epoch, per_epoch


def feed(
    engine: Engine, options: Any, problem: Problem, key: jax.Array, num_steps: int, first: int = 0
) -> Iterator[Any]:
    """The batches of each step from the `first` on.

    All rows are packed once. Batches of rows are packed while the step before runs.
    """
    data, devices = problem.data, problem.devices
    if engine.rows == "none":
        yield from (None for _ in range(first, num_steps))
        return
    if engine.rows == "stream":
        for step in range(first, num_steps):
            rows = stream_rows(options, data.num_rows, jax.random.fold_in(key, step), step)
            yield data.shards(rows, options.batch_size, devices)
        return
    size = data.num_rows if engine.rows == "all" else options.batch_size
    if size == data.num_rows:
        everything = data.shards(np.arange(size), size, devices)
        yield from (everything for _ in range(first, num_steps))
        return
    done, skip = divmod(first, num_steps // options.num_epochs)
    for epoch in range(done, options.num_epochs):
        epoch_key = jax.random.fold_in(key, 0 if engine.rows == "partition" else epoch)
        short = not engine.sharded
        yield from data.batches(epoch_key, size, devices, drop_last=short, skip=skip)
        skip = 0


def stream_rows(options: Any, num_rows: int, key: jax.Array, step: int) -> np.ndarray:
    """Rows picked at random from those that have arrived (T 16)."""
    seed = np.asarray(jax.random.key_data(key)).ravel()
    present = options.present(num_rows, step)
    size = min(options.batch_size, present)
    return np.sort(np.random.default_rng(seed).choice(present, size, replace=False))
