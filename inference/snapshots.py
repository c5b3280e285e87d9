"""An engine's state as plain arrays and JSON, and back, bit for bit: what a checkpoint holds. Never pickle.

A state is made of NamedTuples, tuples, lists, dicts, numbers, NumPy arrays, JAX arrays and random keys. Of a JAX array it matters on which devices it
lies, whether it must stay there, and, of a scalar, whether its type is weak: a program that is given it back must be the one that ran before.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from inference import devices

PACKAGES = ("inference", "numpyro", "pp_models")  # whose NamedTuples a state may be made of

Arrays = dict[str, np.ndarray]


def pack(tree: Any) -> tuple[Any, Arrays]:
    """(outline, arrays): the outline is JSON that names the arrays."""
    arrays: Arrays = {}
    return _outline(tree, arrays), arrays


def unpack(outline: Any, arrays: Arrays) -> Any:
    """What was packed. Raises ValueError, KeyError, IndexError or TypeError for an outline that is none."""
    kind, *rest = outline
    return _MAKERS[kind](arrays, *rest)


def _outline(x: Any, arrays: Arrays) -> Any:
    if x is None or (isinstance(x, bool | int | float | str) and not isinstance(x, np.generic)):
        return ["plain", x]
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        kind = type(x)
        _named_type(kind.__module__, kind.__qualname__)  # what cannot be read back is not written
        return ["named", kind.__module__, kind.__qualname__, [_outline(part, arrays) for part in x]]
    if isinstance(x, tuple | list):
        return ["tuple" if isinstance(x, tuple) else "list", [_outline(part, arrays) for part in x]]
    if isinstance(x, dict):
        return ["dict", [_outline(name, arrays) for name in x], [_outline(part, arrays) for part in x.values()]]
    if isinstance(x, np.ndarray | np.generic):
        return ["numpy", _keep(x, arrays), isinstance(x, np.generic)]
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return ["key", str(jax.random.key_impl(x)), _outline(jax.random.key_data(x), arrays)]
    if isinstance(x, jax.Array):
        return ["jax", _keep(x, arrays), _place(x), bool(x.weak_type)]
    raise TypeError(f"A state cannot hold a {type(x).__name__}.")


def _keep(x: Any, arrays: Arrays) -> str:
    name = f"state/{len(arrays)}"
    arrays[name] = devices.on_host(x)  # of several processes' chains, every one keeps all
    return name


def _place(x: jax.Array) -> Any:
    """None where it may be moved; else its device, by its place among all of them, or a mesh's devices and whether it is shared out to them."""
    if not x.committed:
        return None
    known = jax.devices()
    if isinstance(x.sharding, NamedSharding):
        return [[known.index(device) for device in x.sharding.mesh.devices.ravel()], any(axis is not None for axis in x.sharding.spec)]
    (device,) = x.sharding.device_set
    return known.index(device)


def _named_type(module: str, name: str) -> Any:
    """A NamedTuple of this project or NumPyro, in a module that is in use: no name in a file makes anything be imported or called."""
    if module.split(".")[0] not in PACKAGES:
        raise ValueError(f"{module}.{name} is no part of a state")
    kind = getattr(sys.modules[module], name)
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise ValueError(f"{module}.{name} is no part of a state")
    return kind


def _make_plain(arrays: Arrays, x: Any) -> Any:
    if not (x is None or isinstance(x, bool | int | float | str)):
        raise TypeError(f"{type(x).__name__} is no part of a state")
    return x


def _make_named(arrays: Arrays, module: str, name: str, parts: list[Any]) -> Any:
    kind = _named_type(module, name)
    if len(parts) != len(kind._fields):
        raise ValueError(f"{module}.{name} has other fields")
    return tuple.__new__(kind, [unpack(part, arrays) for part in parts])


def _make_dict(arrays: Arrays, names: list[Any], parts: list[Any]) -> Any:
    return dict(zip((unpack(name, arrays) for name in names), (unpack(part, arrays) for part in parts), strict=True))


def _make_numpy(arrays: Arrays, name: str, scalar: bool) -> Any:
    return arrays[name][()] if scalar else arrays[name]


def _make_key(arrays: Arrays, impl: str, data: Any) -> jax.Array:
    return jax.random.wrap_key_data(unpack(data, arrays), impl=impl)


def _make_jax(arrays: Arrays, name: str, place: Any, weak: bool) -> jax.Array:
    x = arrays[name]
    with _wide(x):
        if weak and x.ndim == 0:
            made = jnp.asarray(x.item())
            made = made if made.dtype == x.dtype else jnp.asarray(x)
        else:
            made = jnp.asarray(x)
        if place is None:
            return made
        known = jax.devices()
        if isinstance(place, int):
            return jax.device_put(made, known[place])
        return devices.placed(made, [known[i] for i in place[0]], devices.EACH if place[1] else devices.EVERYWHERE)


@contextlib.contextmanager
def _wide(x: np.ndarray) -> Iterator[None]:
    """Double precision while an array of it is made, which JAX would otherwise halve."""
    if x.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        with jax.enable_x64(True):
            yield
    else:
        yield


_MAKERS: dict[str, Callable[..., Any]] = {
    "plain": _make_plain,
    "named": _make_named,
    "tuple": lambda arrays, parts: tuple(unpack(part, arrays) for part in parts),
    "list": lambda arrays, parts: [unpack(part, arrays) for part in parts],
    "dict": _make_dict,
    "numpy": _make_numpy,
    "key": _make_key,
    "jax": _make_jax,
}
