"""The primitives that eliminate auxiliary variables, for model files (`pp_models.elimination`)."""

from pp_models.elimination import probit
from pp_models.elimination.allocate import allocate
from pp_models.elimination.choose import choose
from pp_models.elimination.inner import inner
from pp_models.elimination.passes import Solved
from pp_models.elimination.primitive import UNIFORM
from pp_models.elimination.residuals import squared_error
from pp_models.elimination.row_solver import Odds, RowInfo, RowOptions, converge_rows

__all__ = [
    "UNIFORM", "Odds", "RowInfo", "RowOptions", "Solved", "allocate", "choose", "converge_rows",
    "inner", "probit", "squared_error",
]  # fmt: skip
