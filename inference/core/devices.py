"""Where the work is done: the same program on every device of this process, and sums over all devices of all processes.

Rows are dealt out to the devices (`Data.shards`). What is to be done with them is compiled once for all devices, not once for each, and runs on all
of them at the same time with nothing to exchange: on two CPU devices a collective inside a program can starve the threads that it waits for. Results
are added up afterwards, on the first device. Where `jax.distributed` has joined several processes, each holds its own devices' rows and a copy of
everything else; the sums of all processes are then one all-reduce, after which every process makes the same step.
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
            return jax.random.wrap_key_data(
                place(jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, tree)


@cache
def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), (_AXIS,))


class _Scalar(NamedTuple):
    """A scalar that was given an axis, along which devices' parts can lie."""

    value: Any


def _is_scalar(x: Any) -> bool:
    return isinstance(x, _Scalar)


@jax.jit
def _bare(scalars):
    return [x.value.reshape(()) for x in scalars]


@lru_cache(maxsize=512)
def program(
    function: Callable[..., Any], setting: Any, devices: tuple[Any, ...]
) -> Callable[..., Any]:
    """`function(setting, common, own)` on every device, compiled once: `common` is the same everywhere, of `own` and the results each has a part.

    Parts lie along the first axis; from several devices, results that are scalars come as `_Scalar`.
    """
    if len(devices) == 1:

        def alone(common, own):
            return function(setting, common, own)

        return jax.jit(_named(alone, function))

    def on_one(common, own):
        return jax.tree.map(
            lambda x: _Scalar(x[None]) if jnp.ndim(x) == 0 else x, function(setting, common, own)
        )

    each = jax.shard_map(
        _named(on_one, function),
        mesh=_mesh(devices),
        in_specs=(EVERYWHERE, EACH),
        out_specs=EACH,
        check_vma=False,
    )
    return jax.jit(each)


def _named(wrapper: Any, function: Any) -> Any:
    """Called as what it does, in profiles and logs of compilations."""
    wrapper.__name__ = wrapper.__qualname__ = function.__name__
    return wrapper


def run(
    function: Callable[..., Any],
    setting: Any,
    devices: Sequence[Any],
    common: Any,
    own: Sequence[Any],
) -> tuple[Any, ...]:
    """`function(setting, common, own)` with every one of this process's devices' own arguments, at the same time; the results, device by device.

    setting is hashable, and what else the program is compiled for.
    """
    here = mine(devices)
    if len(here) == 1 or len(set(here)) < len(
        here
    ):  # a device that is named twice does one part after the other
        return tuple(
            program(function, setting, (device,))(jax.device_put(common, device), part)
            for device, part in zip(here, own, strict=True)
        )
    compiled = program(function, setting, here)
    sharding = NamedSharding(_mesh(here), EACH)

    def join(*leaves: Any) -> Any:
        return jax.make_array_from_single_device_arrays(
            (sum(len(x) for x in leaves), *leaves[0].shape[1:]), sharding, leaves
        )

    result = compiled(placed(common, here, EVERYWHERE), jax.tree.map(join, *own))
    leaves, structure = jax.tree.flatten(result)
    parts = [{shard.device: shard.data for shard in leaf.addressable_shards} for leaf in leaves]
    return tuple(
        _without_axes(structure.unflatten([part[device] for part in parts])) for device in here
    )


def _without_axes(tree: Any) -> Any:
    """Scalars as they were, all in one go."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_scalar)
    bare = iter(_bare([leaf for leaf in leaves if _is_scalar(leaf)]))
    return structure.unflatten([next(bare) if _is_scalar(leaf) else leaf for leaf in leaves])


def gather(devices: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
    """This process's devices' results on its first one. Where several processes work together: one part, the sum over all devices of all of them."""
    first = mine(devices)[0]
    here = [part if i == 0 else jax.device_put(part, first) for i, part in enumerate(parts)]
    return [_sum_over_processes(devices, here)] if is_shared(devices) else here


@jax.jit
def _sum_with_axis(parts):
    """A sum with an axis in front, for the processes."""
    return jax.tree.map(lambda *x: sum(x[1:], x[0])[None], *parts)


@lru_cache(maxsize=8)
def _program_for_all(devices: tuple[Any, ...], add: bool) -> Any:
    """Of trees with an axis for the processes: their sum, or as they are, known to all."""
    return jax.jit(
        lambda tree: jax.tree.map(lambda x: jnp.sum(x, 0) if add else x, tree),
        out_shardings=NamedSharding(_mesh(devices), EVERYWHERE),
    )


def _exchange(devices: Sequence[Any], tree: Any, add: bool) -> Any:
    """Trees of arrays (1, ...) on the processes' first devices, added up or one after the other, on the first device of each."""
    firsts = one_each(devices)
    sharding = NamedSharding(_mesh(firsts), EACH)
    joined = jax.tree.map(
        lambda x: jax.make_array_from_single_device_arrays(
            (len(firsts), *x.shape[1:]), sharding, [x]
        ),
        tree,
    )
    return jax.tree.map(lambda x: x.addressable_data(0), _program_for_all(firsts, add)(joined))


def _sum_over_processes(devices: Sequence[Any], parts: Sequence[Any]) -> Any:
    return _exchange(devices, _sum_with_axis(list(parts)), True)


def across(devices: Sequence[Any], x: Any) -> np.ndarray:
    """(processes, ...) what each of them gives, on the host."""
    return np.asarray(
        _exchange(devices, jax.device_put(np.asarray(x)[None], mine(devices)[0]), False)
    )


def total(terms: Any) -> float:
    """Numbers, or arrays of them, added up in double precision."""
    return float(sum(np.asarray(term, np.float64).sum() for term in jax.tree.leaves(terms)))


def totals(terms: dict[str, Any]) -> dict[str, float]:
    """The total of each."""
    return {name: total(term) for name, term in terms.items()}


def on_host(x: Any) -> np.ndarray:
    """The whole of an array that may lie on several processes' devices, of which each has one part or more."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    return np.asarray(_replicator(x.sharding.mesh)(x))


@lru_cache(maxsize=8)
def _replicator(mesh: Mesh) -> Any:
    """Compiled once for arrays of one shape, not at every reading."""
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, EVERYWHERE))


def from_all(devices: Sequence[Any], parts: Sequence[Any]) -> tuple[Any, ...]:
    """One part per device, of all processes, on the host: an array at a time, which no more than one device of each holds meanwhile."""
    if not is_shared(devices):
        return tuple(parts)
    gathered = [jax.tree.map(lambda x: across(devices, x), part) for part in parts]
    return tuple(
        jax.tree.map(lambda x, i=i: x[i], part)
        for part in gathered
        for i in range(len(one_each(devices)))
    )


def agreed(devices: Sequence[Any], value: Any) -> np.ndarray:
    """Numbers that processes may find differently, such as times, as the first of them has it: whoever decides by them decides alike."""
    return across(devices, value)[0] if is_shared(devices) else np.asarray(value)


def added(devices: Sequence[Any], values: Any) -> np.ndarray:
    """Numbers of this process added to those of all others."""
    return (
        across(devices, values).sum(0, dtype=np.float64)
        if is_shared(devices)
        else np.asarray(values, np.float64)
    )


def all_or_none(devices: Sequence[Any], action: Callable[[], Any]) -> Any:
    """The action's result. Where it fails in one process, it fails in all of them: none is left waiting for one that has ended."""
    result, trouble = None, None
    try:
        result = action()
    except BaseException as error:
        trouble = error
    if is_shared(devices):
        failed, signals = across(
            devices, [int(trouble is not None), getattr(trouble, "signal", 0)]
        ).T
        if trouble is None and signals.any():
            raise Stopped(int(signals.max()))
        if trouble is None and failed.any():
            raise InputError(
                f"Process {int(failed.argmax())} failed, and the others end with it: see what it says."
            )
    if trouble is not None:
        raise trouble
    return result


def check(devices: Sequence[Any]) -> None:
    """Every process must have as many devices as any other, one at least."""
    counts = {
        index: sum(device.process_index == index for device in devices)
        for index in range(jax.process_count())
    }
    if not is_shared(devices) and mine(devices):
        return
    if len(set(counts.values())) > 1:
        raise InputError(
            f"Processes that fit together need the same number of devices each, but have {', '.join(map(str, counts.values()))}: "
            "give the same --devices (or jax_num_cpu_devices) to all of them."
        )
