"""An engine's state as plain arrays and JSON, and back, bit for bit. Never pickle.

A state is made of NamedTuples, tuples, lists, dicts, numbers, NumPy arrays, JAX arrays and random
keys. A JAX array comes back on the same devices, committed to them or not, and a scalar with the
same weak type: the compiled program that is given it again must be the one that ran before.
"""

import contextlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from inference.core import devices

# whose NamedTuples a state may be made of
PACKAGES = ("inference", "numpyro", "pp_models", "pp_models_path")

Arrays = dict[str, np.ndarray]


def pack(tree: Any) -> tuple[Any, Arrays]:
    """(outline, arrays): the outline is JSON that names the arrays."""
    arrays: Arrays = {}
    return _outline(tree, arrays), arrays


def _outline(x: Any, arrays: Arrays) -> Any:
    def each(parts: Any) -> list[Any]:
        return [_outline(part, arrays) for part in parts]

    if x is None or (isinstance(x, bool | int | float | str) and not isinstance(x, np.generic)):
        return ["plain", x]
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        module, name = type(x).__module__, type(x).__qualname__
        _named_type(module, name)  # what cannot be read back is not written
        return ["named", module, name, each(x)]
    if isinstance(x, tuple | list):
        return ["tuple" if isinstance(x, tuple) else "list", each(x)]
    if isinstance(x, dict):
        return ["dict", each(x), each(x.values())]
    if isinstance(x, np.ndarray | np.generic):
        return ["numpy", _keep(x, arrays), isinstance(x, np.generic)]
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return ["key", str(jax.random.key_impl(x)), _outline(jax.random.key_data(x), arrays)]
    if isinstance(x, jax.Array):
        return ["jax", _keep(x, arrays), _place(x), bool(x.weak_type)]
    raise TypeError(f"A state cannot hold a {type(x).__name__}.")


def _keep(x: Any, arrays: Arrays) -> str:
    name = f"state/{len(arrays)}"
    arrays[name] = devices.on_host(x)  # each of several processes keeps the chains of all
    return name


def _place(x: jax.Array) -> Any:
    """None where it may be moved; else its device, or [the devices of a mesh, is it sharded]."""
    if not x.committed:
        return None
    known = jax.devices()
    if isinstance(x.sharding, NamedSharding):
        mesh = [known.index(device) for device in x.sharding.mesh.devices.ravel()]
        return [mesh, any(axis is not None for axis in x.sharding.spec)]
    (device,) = x.sharding.device_set
    return known.index(device)


def unpack(outline: Any, arrays: Arrays) -> Any:
    """What was packed. Raises ValueError, KeyError, IndexError or TypeError for a bad outline."""

    def each(parts: list[Any]) -> list[Any]:
        return [unpack(part, arrays) for part in parts]

    match outline:
        case ["plain", None | bool() | int() | float() | str() as x]:
            return x
        case ["named", str() as module, str() as name, list() as parts]:
            kind = _named_type(module, name)
            if len(parts) != len(kind._fields):
                raise ValueError(f"{module}.{name} has other fields")
            return tuple.__new__(kind, each(parts))
        case ["tuple", list() as parts]:
            return tuple(each(parts))
        case ["list", list() as parts]:
            return each(parts)
        case ["dict", list() as names, list() as parts]:
            return dict(zip(each(names), each(parts), strict=True))
        case ["numpy", str() as name, bool() as scalar]:
            return arrays[name][()] if scalar else arrays[name]
        case ["key", str() as implementation, data]:
            return jax.random.wrap_key_data(unpack(data, arrays), impl=implementation)
        case ["jax", str() as name, place, bool() as weak]:
            return _on_devices(arrays[name], place, weak)
    raise ValueError("this is no outline of a state")


def _named_type(module: str, name: str) -> Any:
    """A NamedTuple type of a module that is in use. Nothing is imported or called by its name."""
    kind = getattr(sys.modules[module], name) if module.split(".")[0] in PACKAGES else None
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise ValueError(f"{module}.{name} is no part of a state")
    return kind


def _on_devices(x: np.ndarray, place: Any, weak: bool) -> jax.Array:
    # JAX would halve double precision where it is not enabled
    wide = x.dtype.itemsize == 8 and not jax.config.jax_enable_x64
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        made = jnp.asarray(x.item()) if weak and x.ndim == 0 else jnp.asarray(x)
        made = made if made.dtype == x.dtype else jnp.asarray(x)
        known = jax.devices()
        if place is None:
            return made
        if isinstance(place, int):
            return jax.device_put(made, known[place])
        spec = devices.EACH if place[1] else devices.EVERYWHERE
        return devices.placed(made, [known[i] for i in place[0]], spec)
