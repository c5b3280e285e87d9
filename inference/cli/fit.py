"""`pp-models fit`: one fit in a folder (`folder`), by one process or several."""

import argparse
from pathlib import Path
from typing import Any

import jax

from inference.cli import folder as results
from inference.cli import shown
from inference.cli.settings import find_folder, load_data, make_folder, parse_setting, prepare
from inference.core import devices
from inference.core.interruption import Stopped
from inference.io.fits import Fit
from inference.run import checkpoint as checkpoints
from inference.run.fit import default_engine, fit
from pp_models.errors import Diverged, InputError


def run_fit(chosen: argparse.Namespace) -> int:
    """The files of `folder`, and topics on the terminal; until then DIR/checkpoint.npz."""
    if chosen.draws < 0:
        raise InputError(f"--draws must be a number of draws, at least 0, not {chosen.draws}.")
    _check_processes(chosen)
    chosen.engine = chosen.engine or default_engine(chosen.model)
    model, settings = prepare(chosen, [chosen.engine])
    folder = find_folder(chosen)
    _join_processes(chosen)  # before JAX is first used, which reading data may do
    data, hyper = load_data(chosen, model, settings["hyper"])
    given = dict(sorted(parse_setting(text) for text in chosen.set))
    asked = {"model": chosen.model, "engine": chosen.engine, "seed": chosen.seed}
    asked |= {"data": data.hash, "evaluate_every": chosen.evaluate_every}
    asked |= {"hyper-parameters and options": given}
    asked |= {"draws": chosen.draws} if chosen.draws else {}
    writes = not chosen.process_id
    # of several processes, the first may be alone to see its results
    if chosen.resume and devices.agreed(jax.devices(), results.is_finished(folder)):
        if writes:
            results.check_same(folder, asked)
            print(f"{folder} holds the finished fit: nothing is left to do.")
        else:  # the first process could not, where this one has another disk
            checkpoints.remove(folder / results.CHECKPOINT)
        return 0
    if chosen.coordinator is None:
        make_folder(folder)  # several processes do so together when they look for checkpoints
    if chosen.overwrite:  # nobody looks for a checkpoint before all are gone
        devices.all_or_none(jax.devices(), lambda: results.begin_anew(folder))
    try:
        found = _fit(chosen, data, hyper, folder, settings["options"].get(chosen.engine, {}))
    except Diverged as error:
        raise results.keep_last_good(error, folder) if writes else error from None
    except Stopped as stopped:
        told = f"{stopped} Add --resume to the same command to go on."
        raise Stopped(stopped.signal, told) from None
    if writes:
        notes = results.write(found, folder, asked, chosen.draws)
        _tell(found, folder, notes)
    elif not chosen.quiet:
        number = f"{chosen.process_id} of {chosen.num_processes}"
        print(f"process {number} is done; process 0 writes the results")
    return 0


def _fit(chosen: argparse.Namespace, data: Any, hyper: Any, folder: Path, options: Any) -> Fit:
    return fit(
        chosen.model,
        data,
        chosen.engine,
        hyper,
        jax.random.key(chosen.seed),
        progress=False if chosen.quiet else None,
        evaluate_every=chosen.evaluate_every,
        checkpoint=folder / results.CHECKPOINT,
        checkpoint_seconds=chosen.checkpoint_seconds,
        checkpoint_steps=chosen.checkpoint_steps,
        **options,
    )


def _tell(found: Fit, folder: Path, notes: list[str]) -> None:
    print(found)
    scored = [x for x in found.history.get("heldout", ()) if x == x]
    if scored:
        print(
            f"batches scored before they were learned from: {len(scored)}, the first "
            f"{scored[0]:.4f} and the last {scored[-1]:.4f} nats per word"
        )
    if shown.has_parts(found):
        print(shown.format_parts(shown.parts(found), found.column_names))
    elif ratings := shown.format_ratings(found):
        print(ratings)
    print(f"written to {folder}")
    for note in notes:
        print(note)


def _check_processes(chosen: argparse.Namespace) -> None:
    """All three options or none, with possible numbers."""
    names = ("coordinator", "num_processes", "process_id")
    given = {f"--{name.replace('_', '-')}": getattr(chosen, name) for name in names}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return
    if missing:
        raise InputError(
            "--coordinator, --num-processes and --process-id go together; missing: "
            f"{' and '.join(missing)}: give all three."
        )
    if chosen.num_processes < 1 or not 0 <= chosen.process_id < chosen.num_processes:
        raise InputError(
            f"--process-id must be from 0 to --num-processes - 1, not {chosen.process_id} of "
            f"{chosen.num_processes}."
        )
    host, colon, port = chosen.coordinator.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(
            f"--coordinator must be HOST:PORT, such as 10.0.0.1:5000, not {chosen.coordinator!r}."
        )


def _join_processes(chosen: argparse.Namespace) -> None:
    """Meet the other processes, where there are any. They must all come within some minutes."""
    if chosen.coordinator is None:
        return
    day = 24 * 3600  # the others wait for process 0, which may solve rows and write for long
    numbers = chosen.num_processes, chosen.process_id
    try:
        jax.distributed.initialize(chosen.coordinator, *numbers, shutdown_timeout_seconds=day)
    except RuntimeError as error:
        raise InputError(
            f"The processes did not meet at {chosen.coordinator} ({str(error).splitlines()[0]}): "
            "start all of them, with the same address."
        ) from error
