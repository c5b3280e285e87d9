r"""The columns' first locations in a factorisation of ratings: singular vectors, refined.

From random locations, alternating updates with little noise may stop far from the best answer. The
singular vectors of the ratings, missing ones set to the offset, are nearer to it (Keshavan,
Montanari & Oh 2010). With a share $p$ of the ratings observed and singular values $s_k$, the
locations of the columns are $\sqrt{s_k / p}$ times the right vectors, which gives rows and columns
equal squares. Ridge regressions of rows and columns in turn refine them, with the noise that the
last ones left: it begins at the ratings' mean square and falls. Of several starts the one with the
least squared error is kept.

Rows have random weights of mean one, as in the Bayesian bootstrap, so that starts differ.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pp_models.data.batches import Batch
from pp_models.data.types import Data

PASSES = 6  # of power iteration, each over the ratings there and back
MOST_STARTS, MOST_SWEEPS = 4, 10
WORK = 5e8  # multiplications, once for the vectors and once for the regressions: about a second


def locations(key: jax.Array, hyper, data: Data | Batch, noise: jax.Array) -> jax.Array:
    """(columns, rank) first locations. They are the noise for a `Batch`, whose caller uses only the
    sites of its rows, and under a trace, which asks for shapes alone.

    noise: (columns, rank), a tenth of which keeps apart the directions that say nothing
    """
    if isinstance(data, Batch) or isinstance(key, jax.core.Tracer):
        return noise
    seed, offset = np.asarray(jax.random.key_data(key)).ravel(), float(hyper.offset)
    found = _search(data.matrix, hyper.rank, seed, offset)
    return 0.1 * noise + jnp.asarray(found, noise.dtype)


def effort(num_entries: int, rank: int) -> tuple[int, int]:
    """The numbers of starts and sweeps that fit into `WORK`: sweeps first, then starts."""
    cost = 2 * num_entries * rank**2 + 1
    starts = int(np.clip(WORK // (MOST_SWEEPS * cost), 1, MOST_STARTS))
    return starts, int(min(WORK // (starts * cost), MOST_SWEEPS))


def _search(matrix, rank, seed, offset):
    """The best locations found, from as many rows as fit into `WORK`."""
    share = min(1.0, WORK / (2 * PASSES * rank * matrix.nnz + 1))
    spread = np.linspace(0, matrix.shape[0] - 1, max(1, int(share * matrix.shape[0])))
    ratings = matrix[np.unique(spread.round().astype(int))].astype(float)
    ratings.data -= offset
    starts, sweeps = effort(ratings.nnz, rank)
    rng = np.random.default_rng(seed)
    found = [_refine(ratings, _leading(rng, ratings, rank), sweeps) for _ in range(starts)]
    columns = min(found, key=lambda one: one[0])[1]
    return np.pad(columns, ((0, 0), (0, rank - columns.shape[1])))


def _leading(rng, ratings, rank):
    """Scaled right singular vectors, by power iteration."""
    num_rows, num_columns = ratings.shape
    weighted = np.sqrt(rng.exponential(size=num_rows))[:, None]
    columns = rng.normal(size=(num_columns, min(rank, num_columns)))
    for _ in range(PASSES):
        columns = np.linalg.qr(ratings.T @ (weighted**2 * (ratings @ columns)))[0]
    _, singular, turn = np.linalg.svd(weighted * (ratings @ columns), full_matrices=False)
    share = max(1, ratings.nnz) / (num_rows * num_columns)
    return columns @ turn.T * np.sqrt(singular / share)


def _refine(ratings, columns, sweeps):
    """The squared error that the sweeps left, and the columns' locations after them."""
    seen, seen_by_column = (x._with_data(np.ones(x.nnz)) for x in (ratings, ratings.T.tocsr()))
    coordinates = ratings.tocoo().coords
    error, square = float(ratings.data @ ratings.data), np.mean(columns**2)
    for _ in range(sweeps if square > 0 else 0):  # 0: all ratings are equal to the offset
        ridge = max(error / (ratings.nnz * square), 1e-6 * square)
        rows = _ridge(ratings, seen, columns, ridge)
        columns = _ridge(ratings.T, seen_by_column, rows, ridge)
        found = np.einsum("nk,nk->n", rows[coordinates[0]], columns[coordinates[1]])
        error = float(np.sum((ratings.data - found) ** 2))
    return error, columns


def _ridge(ratings, seen, other, ridge):
    """The regression of every row on the other side's locations."""
    size = other.shape[1]
    upper = np.triu_indices(size)
    sums = seen @ (other[:, upper[0]] * other[:, upper[1]])
    matrices = np.empty((len(sums), size, size))
    matrices[:, upper[0], upper[1]] = matrices[:, upper[1], upper[0]] = sums
    matrices += ridge * np.eye(size)
    return np.linalg.solve(matrices, (ratings @ other)[..., None])[..., 0]
