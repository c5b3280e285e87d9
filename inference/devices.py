"""Where the work is done: the same program on every device of this process, and sums over all devices of all processes.

Rows are dealt out to the devices (`Data.shards`). What is to be done with them is compiled once for all devices, not once for each, and runs on all
of them at the same time with nothing to exchange: on two CPU devices a collective inside a program can starve the threads that it waits for. Results
are added up afterwards, on the first device. Where `jax.distributed` has joined several processes, each holds its own devices' rows and a copy of
everything else; the sums of all processes are then one all-reduce, after which every process makes the same step.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_AXIS = "devices"
EVERYWHERE, EACH = PartitionSpec(), PartitionSpec(_AXIS)


def mine(devices: Sequence[Any]) -> tuple[Any, ...]:
    """Those of the devices that belong to this process."""
    return tuple(device for device in devices if device.process_index == jax.process_index())


def one_each(devices: Sequence[Any]) -> tuple[Any, ...]:
    """The first device of every process."""
    first: dict[int, Any] = {}
    for device in devices:
        first.setdefault(device.process_index, device)
    return tuple(first.values())


def is_shared(devices: Sequence[Any]) -> bool:
    """Whether several processes work together on these devices."""
    return len({device.process_index for device in devices}) > 1


def placed(tree: Any, devices: Sequence[Any], spec: PartitionSpec) -> Any:
    """Arrays on all of the devices: the same everywhere, or the first axis shared out. Every process must give the same ones."""
    sharding = NamedSharding(_mesh(tuple(devices)), spec)
    if not is_shared(devices):
        return jax.device_put(tree, sharding)

    def place(x: Any) -> Any:
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(place(jax.random.key_data(x)))
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, tree)


@cache
def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), (_AXIS,))


@lru_cache(maxsize=512)
def program(function: Callable[..., Any], setting: Any, devices: tuple[Any, ...]) -> Callable[..., Any]:
    """`function(setting, common, own)` on every device, compiled once: `common` is the same everywhere, of `own` and the results each has a part.

    Parts lie along the first axis; a result that is a scalar gets one.
    """
    if len(devices) == 1:

        def alone(common, own):
            return function(setting, common, own)

        return jax.jit(_named(alone, function))

    def on_one(common, own):
        return jax.tree.map(lambda x: x[None] if jnp.ndim(x) == 0 else x, function(setting, common, own))

    each = jax.shard_map(_named(on_one, function), mesh=_mesh(devices), in_specs=(EVERYWHERE, EACH), out_specs=EACH, check_vma=False)
    return jax.jit(each)


def _named(wrapper: Any, function: Any) -> Any:
    """Called as what it does, in profiles and logs of compilations."""
    wrapper.__name__ = wrapper.__qualname__ = function.__name__
    return wrapper


def run(function: Callable[..., Any], setting: Any, devices: Sequence[Any], common: Any, own: Sequence[Any]) -> tuple[Any, ...]:
    """`function(setting, common, own)` with every one of this process's devices' own arguments, at the same time; the results, device by device.

    setting is hashable, and what else the program is compiled for. A result that is a scalar comes with a single axis from several devices.
    """
    here = mine(devices)
    if len(here) == 1 or len(set(here)) < len(here):  # a device that is named twice does one part after the other
        return tuple(program(function, setting, (device,))(jax.device_put(common, device), part) for device, part in zip(here, own, strict=True))
    compiled = program(function, setting, here)
    sharding = NamedSharding(_mesh(here), EACH)

    def join(*leaves: Any) -> Any:
        return jax.make_array_from_single_device_arrays((sum(len(x) for x in leaves), *leaves[0].shape[1:]), sharding, leaves)

    result = compiled(placed(common, here, EVERYWHERE), jax.tree.map(join, *own))
    leaves, structure = jax.tree.flatten(result)
    parts = [{shard.device: shard.data for shard in leaf.addressable_shards} for leaf in leaves]
    return tuple(structure.unflatten([part[device] for part in parts]) for device in here)


def gather(devices: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
    """This process's devices' results on its first one. Where several processes work together: one part, the sum over all devices of all of them."""
    first = mine(devices)[0]
    here = [part if i == 0 else jax.device_put(part, first) for i, part in enumerate(parts)]
    return [_sum_over_processes(devices, here)] if is_shared(devices) else here


@jax.jit
def _sum_with_axis(parts):
    """A sum with an axis in front, for the processes."""
    return jax.tree.map(lambda *x: sum(jnp.reshape(y, x[0].shape) for y in x)[None], *parts)


@lru_cache(maxsize=8)
def _adder(devices: tuple[Any, ...]) -> Any:
    return jax.jit(lambda tree: jax.tree.map(lambda x: jnp.sum(x, 0), tree), out_shardings=NamedSharding(_mesh(devices), EVERYWHERE))


def _sum_over_processes(devices: Sequence[Any], parts: Sequence[Any]) -> Any:
    firsts = one_each(devices)
    sharding = NamedSharding(_mesh(firsts), EACH)
    mine_now = _sum_with_axis(list(parts))
    joined = jax.tree.map(lambda x: jax.make_array_from_single_device_arrays((len(firsts), *x.shape[1:]), sharding, [x]), mine_now)
    return jax.tree.map(lambda x: x.addressable_data(0), _adder(firsts)(joined))


def total(terms: Any) -> float:
    """Numbers, or arrays of them, added up in double precision."""
    return float(sum(np.asarray(term, np.float64).sum() for term in jax.tree.leaves(terms)))


def on_host(x: Any) -> np.ndarray:
    """The whole of an array that may lie on several processes' devices."""
    whole = not isinstance(x, jax.Array) or x.is_fully_addressable
    return np.asarray(x if whole else multihost_utils.process_allgather(x, tiled=True))


def from_all(devices: Sequence[Any], parts: Sequence[Any]) -> tuple[Any, ...]:
    """One part per device, of all processes, on the host."""
    if not is_shared(devices):
        return tuple(parts)
    gathered = [multihost_utils.process_allgather(part) for part in parts]  # (processes, ...) of each local device
    return tuple(jax.tree.map(lambda x, i=i: x[i], part) for part in gathered for i in range(len(one_each(devices))))


def agreed(devices: Sequence[Any], value: float) -> float:
    """A number that processes may measure differently, as the first of them has it."""
    return float(multihost_utils.broadcast_one_to_all(np.float32(value))) if is_shared(devices) else value
