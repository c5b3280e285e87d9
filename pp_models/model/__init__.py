"""The model contract: the declaration, its hyper-parameters, what follows from it, and F."""

from pp_models.model.capabilities import (
    Learning,
    Marginal,
    Ratings,
    Rotation,
    Tokens,
    Topics,
    Votes,
)
from pp_models.model.check import check_joint, compare_joint
from pp_models.model.declaration import (
    Model,
    Sites,
    choose_variant,
    declare,
    declare_learned,
    learnable,
    make_hyper,
    with_hyper,
)
from pp_models.model.density import (
    documents,
    factor_axes,
    joint,
    log_joint,
    number_of_factors,
    simulate,
)
from pp_models.model.derived import check_declaration, guide_of, value_shapes
from pp_models.model.hyper import (
    Count,
    Finite,
    Flag,
    Positive,
    Positives,
    as_arrays,
    check_count,
    check_finite,
    check_positive,
    fill_in,
    positive_number,
    split_learned,
    values_of,
)

__all__ = [
    "Count", "Finite", "Flag", "Learning", "Marginal", "Model", "Positive", "Positives",
    "Ratings", "Rotation", "Sites", "Tokens", "Topics", "Votes", "as_arrays", "check_count",
    "check_declaration", "check_finite", "check_joint", "check_positive", "choose_variant",
    "compare_joint", "declare", "declare_learned", "documents", "factor_axes", "fill_in",
    "guide_of", "joint", "learnable", "log_joint",
    "make_hyper", "number_of_factors", "positive_number", "simulate", "split_learned",
    "value_shapes", "values_of", "with_hyper",
]  # fmt: skip
