"""The memory of a step, read off the compiled program: topic tables and the batch only."""

import re

import jax
import numpy as np
import pytest
import scipy.sparse

import pp_models
from inference.core import devices
from inference.engines import _minibatch as minibatch
from inference.run import fit
from pp_models.elimination.row_solver import RowOptions

NUM_ROWS, NUM_COLUMNS, NUM_TOPICS = 400, 20_000, 64


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    columns = rng.integers(0, NUM_COLUMNS, NUM_ROWS * 120)
    rows = np.repeat(np.arange(NUM_ROWS), 120)
    return pp_models.data.counts(
        scipy.sparse.coo_array(
            (np.ones(len(rows), int), (rows, columns)), shape=(NUM_ROWS, NUM_COLUMNS)
        )
    )


@pytest.mark.parametrize("name", ["lda", "bayesian_nmf"])
def test_a_step_holds_four_topic_tables(name, corpus):
    """A step holds less than 4.2 V x K numbers beside the batch, in single precision."""
    with jax.enable_x64(False):
        problem = fit.make_problem(name, corpus, {"num_topics": NUM_TOPICS})
        batch = corpus.pack(np.arange(100), 100)
        natural = problem.model.init(jax.random.key(0), problem.hyper, corpus)
        shared = {site: natural[site] for site in problem.model.shared}
        program = devices.program(
            minibatch.solve_share, minibatch.Setting(problem.model, bound=True), problem.devices[:1]
        )
        compiled = program.lower(
            (problem.hyper, shared, RowOptions(20, 1e-3)), (batch, None)
        ).compile()
    memory = compiled.memory_analysis()
    table, rows = 4 * NUM_COLUMNS * NUM_TOPICS, sum(leaf.nbytes for leaf in jax.tree.leaves(batch))
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    assert used < 4.2 * table + 10 * rows, used / table
    shapes = {
        tuple(map(int, found.split(",")))
        for found in re.findall(r"f32\[(\d+(?:,\d+)*)\]", compiled.as_text())
    }
    assert not [shape for shape in shapes if {100, NUM_COLUMNS} <= set(shape)], (
        "a dense documents x words array"
    )
    assert max(int(np.prod(shape)) for shape in shapes) <= NUM_COLUMNS * NUM_TOPICS
