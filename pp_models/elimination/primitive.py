"""The parts that all primitives share: `UNIFORM` and the custom gradient of two sides."""

from collections.abc import Callable

import jax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from pp_models.elimination.passes import Solved

# Given in place of a key: every auxiliary variable is spread evenly over its choices, phi = 1/K
# (T 2.4). A trust-region step begins there.
UNIFORM = "uniform"


def two_sided(evaluate: Callable[..., Solved], name: str = "") -> Callable[..., jax.Array]:
    """(rows, columns, observed, key) -> value, with the statistics as its gradient.

    evaluate: (rows, columns, observed, key, row_side, column_side) -> Solved, with the statistics
    of the sides that are asked for: those that are differentiated. name: used to refuse gradients
    with respect to the observed data; without a name, these are zero.
    """

    def is_primal(x):
        return isinstance(x, CustomVJPPrimal)

    def perturbed(tree):
        return any(x.perturbed for x in jax.tree.leaves(tree, is_leaf=is_primal))

    @jax.custom_vjp
    def function(rows, columns, observed, key):
        return evaluate(rows, columns, observed, key, False, False).value

    def forward(rows, columns, observed, key):
        if name and perturbed(observed):
            raise TypeError(f"{name} has no gradient with respect to the counts: they are data.")
        sides = perturbed(rows), perturbed(columns)
        given = (rows, columns, observed, key)
        plain = jax.tree.map(lambda x: x.value, given, is_leaf=is_primal)
        value, of_rows, of_columns = evaluate(*plain, *sides)
        return value, (of_rows if sides[0] else None, of_columns if sides[1] else None)

    def backward(statistics, cotangent):
        if isinstance(cotangent, SymbolicZero):
            return None, None, None, None
        return *jax.tree.map(lambda x: cotangent * x, statistics), None, None

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function
