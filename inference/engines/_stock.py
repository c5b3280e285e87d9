"""The size check of engines that hand `generate` to NumPyro."""

from inference.core.objective import Problem
from pp_models.errors import TooLarge

MOST_CELLS = 20_000_000  # size of the dense observations that NumPyro's likelihood needs


def check_stock(problem: Problem, engine: str, num_rows: int) -> None:
    """Refuse rows that do not fit into memory as a dense matrix."""
    if num_rows * problem.data.num_columns > MOST_CELLS:
        raise TooLarge(
            f"Engine {engine!r} holds {num_rows} x {problem.data.num_columns} observations as a "
            "dense matrix, which is too large: fit a subset of the rows, or use engine 'gibbs', "
            "'cavi' or 'svi'."
        )
