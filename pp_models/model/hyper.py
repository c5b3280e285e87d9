"""Hyper-parameters: a NamedTuple per model, checked by its field types and used as a pytree.

    class Hyper(NamedTuple):
        num_topics: Count = 10
        alpha: Positives = 0.1          # one number, or several
        eta: Positive = 0.05            # one number
        c0: Positive | None = None      # filled in by `resolve`

Fields whose defaults are counts, flags or names are static: a program is compiled for each of their
values. All others are leaves and may change without a new compilation.
"""

import functools
import typing
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pp_models.errors import InputError, unknown

# Checks ---------------------------------------------------------------------------------------


def check_count(name: str, value: Any) -> int:
    """A whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, not {value!r}.")
    return value


def check_positive(name: str, value: Any) -> Any:
    """Positive finite numbers, in the precision in use."""
    if isinstance(value, str | bool):
        raise InputError(f"{name} must be a positive number, not {value!r}.")
    numbers, limits = np.asarray(value, float), jnp.finfo(jnp.result_type(float))
    if not np.all(np.isfinite(numbers) & (numbers > 0)):
        raise InputError(
            f"{name} must be positive and finite, as a shape, rate, variance or concentration is, "
            f"not {value!r}."
        )
    if np.any((numbers < limits.tiny) | (numbers > limits.max)):
        raise InputError(
            f"{name} must be from {limits.tiny:.0e} to {limits.max:.0e}, the range of "
            f"{limits.bits}-bit numbers, not {value!r}: choose a value inside, or use double "
            "precision (jax_enable_x64)."
        )
    return value


def positive_number(name: str, value: Any) -> float:
    """One positive finite number."""
    if np.ndim(check_positive(name, value)):
        raise InputError(f"{name} must be one number, not {value!r}.")
    return float(value)


def check_finite(name: str, value: Any) -> float:
    """One finite number."""
    if isinstance(value, str | bool) or np.ndim(value) or not np.isfinite(value):
        raise InputError(f"{name} must be one finite number, not {value!r}.")
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, not {value!r}.")
    return value


def _check_choice(choices: tuple[str, ...], name: str, value: Any) -> str:
    if value not in choices:
        raise unknown(name, value, choices)
    return value


Count = Annotated[int, check_count]
Positive = Annotated[float, positive_number]
Positives = Annotated[Any, check_positive]
Finite = Annotated[float, check_finite]
Flag = Annotated[bool, check_flag]


@functools.cache
def _checks(Hyper: Any) -> dict[str, Callable[[str, Any], Any]]:
    """Field -> its check, from the annotations. `resolve` checks the fields without one."""
    found = {}
    for name, hint in typing.get_type_hints(Hyper, include_extras=True).items():
        for part in (hint, *typing.get_args(hint)):
            for check in getattr(part, "__metadata__", ()):
                found[name] = check
        if typing.get_origin(hint) is Literal:
            found[name] = functools.partial(_check_choice, typing.get_args(hint))
    return found


def check_fields(hyper: Any) -> Any:
    """Every field that is given, checked by its type and converted to it."""
    Hyper: Any = type(hyper)
    checks = _checks(Hyper)
    given = {name: x for name, x in hyper._asdict().items() if name in checks and x is not None}
    return hyper._replace(**{name: checks[name](name, x) for name, x in given.items()})


def fill_in(hyper: Any, defaults: Mapping[str, Any]) -> Any:
    """Data-dependent defaults for the fields that are not given.

    A default is a value or a function without arguments, which is called only if the field is
    missing: a stored fit is loaded without its data.
    """
    missing = {name: x for name, x in defaults.items() if getattr(hyper, name) is None}
    return hyper._replace(**{name: x() if callable(x) else x for name, x in missing.items()})


# From user input ------------------------------------------------------------------------------


def read_hyper(Hyper: Any, model_name: str, given: Any) -> Any:
    """A `Hyper` from a dict, a `Hyper` or None, with names and fields checked."""
    given = given._asdict() if isinstance(given, Hyper) else dict(given or {})
    for name in given:
        if name not in Hyper._fields:
            raise unknown(f"hyper-parameter of {model_name}", name, Hyper._fields)
    static = static_fields(Hyper)
    return check_fields(Hyper(**{n: _number(n, x, n in static) for n, x in given.items()}))


def _number(name: str, value: Any, is_static: bool) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value) if is_static else float(value)
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number):
        raise InputError(
            f"Hyper-parameter {name} must be a number or a list of numbers, not {value!r}."
        )
    return float(array) if array.ndim == 0 else tuple(float(x) for x in array.ravel())


def read_learned(model: Any, given: Any) -> tuple[Any, tuple[str, ...] | None]:
    """A `Hyper` from user input with marks "learn" allowed, and the marked names."""
    given, learned = split_learned(model, given)
    return read_hyper(model.Hyper, model.name, given), learned


def split_learned(model: Any, given: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Hyper-parameters without the marks "learn" and ("learn", start), and the marked names. None
    in place of names stands for all that can be learned."""
    if given is None:
        return None, ()
    if isinstance(given, str) and given == "learn":
        return {}, None
    given = given._asdict() if isinstance(given, model.Hyper) else given
    if not isinstance(given, Mapping):
        raise InputError(f'hyper must be a dict of hyper-parameters or "learn", not {given!r}.')
    everything = given.get("learn")
    if everything not in (None, "all"):
        raise InputError(
            f'hyper-parameter "learn" must be "all", not {everything!r}: '
            'to learn one, give it the value "learn".'
        )
    values, learned = {}, []
    for name, value in given.items():
        is_pair = isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str)
        mark = value[0] if is_pair else value if isinstance(value, str) else None
        if name == "learn":
            continue
        if mark == "learn":
            learned.append(name)
        if mark != "learn" or is_pair:
            values[name] = value[1] if mark == "learn" else value
    return values, None if everything else tuple(learned)


# As a pytree ----------------------------------------------------------------------------------


def static_fields(Hyper: Any) -> frozenset[str]:
    """The fields that a program is compiled for, by their defaults: counts, flags and names."""
    defaults = Hyper()._asdict()
    return frozenset(name for name, x in defaults.items() if isinstance(x, bool | int | str))


@functools.cache
def register_hyper(Hyper: Any) -> None:
    """Make `Hyper` a pytree: static fields in its structure, the others as leaves."""
    static = [name for name in Hyper._fields if name in static_fields(Hyper)]
    traced = [name for name in Hyper._fields if name not in static]
    jax.tree_util.register_dataclass(Hyper, traced, static)


def values_of(hyper: Any) -> dict[str, Any]:
    """The given fields that may change without a new compilation."""
    static = static_fields(type(hyper))
    return {n: x for n, x in hyper._asdict().items() if n not in static and x is not None}


def as_arrays(hyper: Any) -> Any:
    """The same hyper-parameters with every value a floating-point array."""
    return hyper._replace(**{name: jnp.asarray(x, float) for name, x in values_of(hyper).items()})
