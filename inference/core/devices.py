"""Where the work is done: one program on every device, and sums over devices and processes.

Rows are dealt out to the devices (`Data.shards`). A program is compiled once for all devices of a
process and runs on them without exchanging anything: on two CPU devices a collective inside a
program can starve the threads that it waits for. Results are added up on the first device. If
`jax.distributed` has joined several processes, each holds the rows of its own devices and a copy of
everything else; one all-reduce adds up the sums, and every process makes the same step.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from inference.core.interruption import Stopped
from pp_models.errors import InputError

_AXIS = "devices"
EVERYWHERE, EACH = PartitionSpec(), PartitionSpec(_AXIS)

Devices = Sequence[Any]


def mine(devices: Devices) -> tuple[Any, ...]:
    """The devices of this process."""
    return tuple(device for device in devices if device.process_index == jax.process_index())


def one_each(devices: Devices) -> tuple[Any, ...]:
    """The first device of every process."""
    first: dict[int, Any] = {}
    for device in devices:
        first.setdefault(device.process_index, device)
    return tuple(first.values())


def is_shared(devices: Devices) -> bool:
    """Whether several processes work together on these devices."""
    return len({device.process_index for device in devices}) > 1


def check(devices: Devices) -> None:
    """Refuse processes with different numbers of devices."""
    owners = [device.process_index for device in devices]
    counts = [owners.count(index) for index in range(jax.process_count())]
    if len(set(counts)) > 1 and not (set(owners) == {jax.process_index()}):
        raise InputError(
            "Processes that fit together need the same number of devices each, but have "
            f"{', '.join(map(str, counts))}: give the same --devices (or jax_num_cpu_devices) to "
            "all of them."
        )


# On the devices of this process ----------------------------------------------------------------


@cache
def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), (_AXIS,))


def placed(tree: Any, devices: Devices, spec: PartitionSpec) -> Any:
    """Arrays on all devices, replicated or with the first axis sharded.

    Every process must give the same arrays.
    """
    sharding = NamedSharding(_mesh(tuple(devices)), spec)
    if not is_shared(devices):
        return jax.device_put(tree, sharding)

    def place(x: Any) -> Any:
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = place(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, tree)


class _Scalar(NamedTuple):
    """A scalar with an axis added, along which the devices' parts can lie."""

    value: Any


@jax.jit
def _bare(scalars):
    return [x.value.reshape(()) for x in scalars]


@lru_cache(maxsize=512)
def program(function: Callable[..., Any], setting: Any, devices: tuple[Any, ...]) -> Any:
    """`function(setting, common, own)` compiled for all devices.

    `common` is replicated; `own` and the results are sharded along the first axis. On several
    devices, results that are scalars become `_Scalar`.
    """

    def on_one(common, own):
        found = function(setting, common, own)
        if len(devices) == 1:
            return found
        return jax.tree.map(lambda x: _Scalar(x[None]) if jnp.ndim(x) == 0 else x, found)

    on_one.__name__ = on_one.__qualname__ = function.__name__  # for profiles and logs
    if len(devices) == 1:
        return jax.jit(on_one)
    specs = {"in_specs": (EVERYWHERE, EACH), "out_specs": EACH, "check_vma": False}
    return jax.jit(jax.shard_map(on_one, mesh=_mesh(devices), **specs))


def run(
    function: Callable[..., Any], setting: Any, devices: Devices, common: Any, own: Sequence[Any]
) -> tuple[Any, ...]:
    """`function(setting, common, own)` on every device of this process; returns their results.

    setting: hashable; the program is compiled for it. own: one argument per device.
    """
    here = mine(devices)
    if len(here) == 1 or len(set(here)) < len(here):  # a device named twice works twice
        return tuple(
            program(function, setting, (device,))(jax.device_put(common, device), part)
            for device, part in zip(here, own, strict=True)
        )
    sharding = NamedSharding(_mesh(here), EACH)

    def join(*leaves: Any) -> Any:
        shape = (sum(len(x) for x in leaves), *leaves[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, leaves)

    compiled = program(function, setting, here)
    result = compiled(placed(common, here, EVERYWHERE), jax.tree.map(join, *own))
    leaves, structure = jax.tree.flatten(result)
    parts = [{shard.device: shard.data for shard in leaf.addressable_shards} for leaf in leaves]
    return tuple(
        _without_axes(structure.unflatten([part[device] for part in parts])) for device in here
    )


def _without_axes(tree: Any) -> Any:
    """Scalars as they were."""

    def is_scalar(x: Any) -> bool:
        return isinstance(x, _Scalar)

    leaves, structure = jax.tree.flatten(tree, is_leaf=is_scalar)
    bare = iter(_bare([leaf for leaf in leaves if is_scalar(leaf)]))
    return structure.unflatten([next(bare) if is_scalar(leaf) else leaf for leaf in leaves])


# Over all processes ----------------------------------------------------------------------------


def run_and_gather(
    function: Callable[..., Any],
    setting: Any,
    devices: Devices,
    common: Any,
    own: Sequence[Any],
    fields: Sequence[str] = (),
) -> tuple[tuple[Any, ...], list[Any]]:
    """The results of `run`, and what `gather` makes of them, or of so many of their fields."""
    results = run(function, setting, devices, common, own)
    parts = [tuple(getattr(one, name) for name in fields) for one in results] if fields else results
    return results, gather(devices, parts)


def gather(devices: Devices, parts: Sequence[Any]) -> list[Any]:
    """The results of this process's devices on its first one.

    If several processes work together: one part, the sum over all devices of all processes.
    """
    first = mine(devices)[0]
    here = [part if i == 0 else jax.device_put(part, first) for i, part in enumerate(parts)]
    return [_exchange(devices, _sum_with_axis(here), True)] if is_shared(devices) else here


@jax.jit
def _sum_with_axis(parts):
    """A sum with an axis in front, for the processes."""
    return jax.tree.map(lambda *x: sum(x[1:], x[0])[None], *parts)


@lru_cache(maxsize=8)
def _for_all(mesh: Mesh, add: bool = False) -> Any:
    """Replicate trees on a mesh, first summed over their axis of processes if `add`."""
    return jax.jit(
        lambda tree: jax.tree.map(lambda x: jnp.sum(x, 0) if add else x, tree),
        out_shardings=NamedSharding(mesh, EVERYWHERE),
    )


def _exchange(devices: Devices, tree: Any, add: bool) -> Any:
    """Arrays (1, ...) of all processes, summed or concatenated, on each process's first device."""
    firsts = one_each(devices)
    sharding = NamedSharding(_mesh(firsts), EACH)

    def join(x: Any) -> Any:
        shape = (len(firsts), *x.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, [x])

    everyone = _for_all(_mesh(firsts), add)(jax.tree.map(join, tree))
    return jax.tree.map(lambda x: x.addressable_data(0), everyone)


def across(devices: Devices, x: Any) -> np.ndarray:
    """(processes, ...) the values of all processes, on the host."""
    here = jax.device_put(np.asarray(x)[None], mine(devices)[0])
    return np.asarray(_exchange(devices, here, False))


def from_all(devices: Devices, parts: Sequence[Any]) -> tuple[Any, ...]:
    """One part per device, of all processes, on the host; exchanged one array at a time."""
    if not is_shared(devices):
        return tuple(parts)
    gathered = [jax.tree.map(lambda x: across(devices, x), part) for part in parts]
    count = range(len(one_each(devices)))
    return tuple(jax.tree.map(lambda x, i=i: x[i], part) for part in gathered for i in count)


def agreed(devices: Devices, value: Any) -> np.ndarray:
    """The value of the first process, so that all processes decide alike."""
    return across(devices, value)[0] if is_shared(devices) else np.asarray(value)


def added(devices: Devices, values: Any) -> np.ndarray:
    """The sum of the values of all processes."""
    if is_shared(devices):
        return across(devices, values).sum(0, dtype=np.float64)
    return np.asarray(values, np.float64)


def all_or_none(devices: Devices, action: Callable[[], Any]) -> Any:
    """The action's result. If it fails in one process it fails in all, so that none waits."""
    result, trouble = None, None
    try:
        result = action()
    except BaseException as error:
        trouble = error
    if is_shared(devices):
        told = [int(trouble is not None), getattr(trouble, "signal", 0)]
        failed, signals = across(devices, told).T
        if trouble is None and signals.any():
            raise Stopped(int(signals.max()))
        if trouble is None and failed.any():
            raise InputError(f"Process {int(failed.argmax())} failed: see its message.")
    if trouble is not None:
        raise trouble
    return result


# On the host -----------------------------------------------------------------------------------


def total(terms: Any) -> float:
    """The sum of numbers or arrays in double precision."""
    return float(sum(np.asarray(term, np.float64).sum() for term in jax.tree.leaves(terms)))


def totals(terms: dict[str, Any]) -> dict[str, float]:
    """The total of each."""
    return {name: total(term) for name, term in terms.items()}


def on_host(x: Any) -> np.ndarray:
    """The whole of an array that may lie on the devices of several processes."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    return np.asarray(_for_all(x.sharding.mesh)(x))
