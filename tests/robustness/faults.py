"""Kill -9 at random moments, again and again, until the work is done; then hold its result to that
of a run nobody disturbed.

    python tests/robustness/faults.py --kills 50 [--only fit,stream] [--seed 0]

Each kind of work runs in a process of its own, which says when it begins. It is killed after a
random part of the time that it takes undisturbed, begun again, and so on, so that every restart
reopens what the last one left. Of databases, stores and fits that are saved, what lies on disk must
be readable after each kill, or refused by the sentence that says it was never complete. Prints a
table: kills, how many came before anything was on disk, and whether the end was the same.
"""

import argparse
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# What is done. Each function does its work in a folder, from wherever it was left, and is run in a


def _begin() -> None:
    """The imports are done: kills from here on."""
    print("begin", flush=True)


def fit(folder: Path, engine: str, *more: str) -> None:
    from inference.cli import main

    _begin()
    sys.exit(main([*_command(folder, engine), *more]))


def _command(folder: Path, engine: str) -> list[str]:
    return [
        "fit",
        "lda",
        "--engine",
        engine,
        "--out",
        str(folder / "out"),
        "--resume",
        "--quiet",
        "--checkpoint-steps",
        "1",
    ]


def fit_together(folder: Path) -> None:
    """By two processes, of which this is the first.

    Both are killed, in whatever they are doing at that moment.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    more = [
        "--set",
        "num_epochs=100",
        "tolerance=0",
        "--coordinator",
        address,
        "--num-processes",
        "2",
        "--process-id",
    ]
    command = [sys.executable, "-m", "pp_models", *_command(folder, "cavi"), *more, "1"]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    fit(folder, "cavi", *more, "0")


def rows_of(number: int) -> Any:
    """The batch of documents that arrives as number so-and-so."""
    return np.random.default_rng(number).poisson(0.7, (40, 30))


def stream(folder: Path) -> None:
    """Rows come and are learned from, in turn; a checkpoint after each step."""
    import jax

    import inference

    _begin()
    with inference.stream(
        "lda",
        30,
        hyper={"num_topics": 3, "alpha": "learn"},
        key=jax.random.key(2),
        path=folder / "wiki",
        checkpoint_every=1,
        batch_size=20,
    ) as learner:
        for number in range(25):
            if learner.num_rows <= 40 * number:
                learner.append(rows_of(number))
            learner.step(max(0, 2 * (number + 1) - learner.num_steps))


def append(folder: Path) -> None:
    """Rows and words into a database."""
    from pp_models.data.database import Database

    _begin()
    with Database(30, path=folder / "rows.db") as database:
        while database.num_rows < 40 * 300:
            number = database.num_rows // 40
            matrix = rows_of(number)
            ids, columns = np.nonzero(matrix)
            database.add(ids + database.num_rows, columns, matrix[ids, columns], new_rows=40)


def store(folder: Path) -> None:
    """Every generation of a corpus replaces the one before; which it is shows in its first
    entry.
    """
    from pp_models.data import corpus

    _begin()
    path = folder / "corpus.h5ad"
    generation = (
        int(corpus.read(path).matrix[np.array([0])].toarray()[0, 0]) if path.exists() else 0
    )
    while generation < 60:
        generation += 1
        corpus.write(path, generation_of(generation), overwrite=True)


def generation_of(number: int) -> list[Any]:
    blocks = [rows_of(i) for i in range(20)]
    blocks[0][0, 0] = number
    return blocks


def save(folder: Path) -> None:
    """A fit with many draws is saved over itself; the number of its engine's seconds says which
    time it was.
    """
    import jax

    import inference
    import pp_models

    source = folder.parent / "fit-to-save.npz"
    if not source.exists():
        hyper, data = pp_models.load("lda").example(jax.random.key(0))
        inference.fit(
            "lda", data, "gibbs", hyper, num_samples=3000, num_warmup=10, num_chains=1
        ).save(source)
    fit = inference.load(source)
    path = folder / "fit.npz"
    _begin()
    number = int(inference.load(path).seconds) if path.exists() else 0
    while number < 80:
        number += 1
        fit.seconds = float(number)
        fit.save(path)


def compare(folder: Path) -> None:
    from inference.cli import main

    _begin()
    engines = "cavi,svi,trust_region,map,nuts"
    sys.exit(
        main(
            [
                "compare",
                "lda",
                "--quick",
                "--quiet",
                "--engines",
                engines,
                "--reference",
                "gibbs",
                "--out",
                str(folder / "out"),
                "--resume",
            ]
        )
    )


# What is looked at: after each kill (raises where it is damaged), and at the end (must be equal). -


def arrays_of(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as found:
        return {
            name: found[name] for name in found.files if name not in ("header", "history/seconds")
        }


def look_at_fit(folder: Path) -> Any:
    return arrays_of(folder / "out" / "fit.npz")


def look_at_stream(folder: Path) -> Any:
    return {**arrays_of(folder / "wiki" / "learned.npz"), "rows": _database(folder / "wiki")}


def look_at_rows(folder: Path) -> Any:
    return {"rows": _database(folder / "rows.db")}


def _database(path: Path) -> np.ndarray:
    from pp_models.data.database import Database

    with Database.open(path, read_only=True) as database:
        return database.data().matrix.toarray()


def look_at_store(folder: Path) -> Any:
    from pp_models.data import corpus

    return {"rows": corpus.read(folder / "corpus.h5ad").matrix.tocsr().toarray()}


def look_at_save(folder: Path) -> Any:
    return arrays_of(folder / "fit.npz")


TIMES = (
    "seconds",
    "seconds_to_1pct",
    "heldout_curve",
    "versions",
    "command",
    "seconds_per_effective_draw",
    "ess_per_second",
)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and text in what JSON held, by its path."""
    if isinstance(tree, dict | list) and tree:
        for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(part, f"{path}/{name}" if path else str(name))
    else:
        yield path, str(tree)


def look_at_comparison(folder: Path) -> Any:
    def timeless(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: timeless(part) for name, part in x.items() if name not in TIMES}
        return [timeless(part) for part in x] if isinstance(x, list) else x

    found = timeless(json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8")))
    return {f"summary/{path}": np.asarray(value) for path, value in leaves(found)} | {
        f"{file.name}/{name}": x
        for file in sorted((folder / "out" / "fits").glob("*.npz"))
        for name, x in arrays_of(file).items()
    }


class Work(NamedTuple):
    """do: see above. look: at the result. whole: whether what lies there can be looked at after
    every kill, once it is there at all.

    share: of the undisturbed time that a process gets at most: less where it keeps its state more
    often, so that most are killed several times.
    """

    do: Callable[[Path], None]
    look: Callable[[Path], Any]
    whole: bool = False
    share: float = 0.25


WORKS = {
    "fit": Work(functools.partial(fit, engine="svi"), look_at_fit),
    "fit-mcmc": Work(
        lambda folder: fit(
            folder, "nuts", "--set", "num_samples=100", "num_warmup=60", "num_chains=2"
        ),
        look_at_fit,
    ),
    "fit-together": Work(fit_together, look_at_fit, share=1.0),
    "stream": Work(stream, look_at_stream),
    "append": Work(append, look_at_rows, whole=True),
    "store": Work(store, look_at_store, whole=True),
    "save": Work(save, look_at_save, whole=True),
    "compare": Work(compare, look_at_comparison, share=1.0),
}


class Outcome(NamedTuple):
    work: str
    kills: int
    before_any: int  # kills after which there was nothing on disk yet
    seconds: float  # undisturbed, from `begin` on
    differs: list[str]  # parts of a result that were not those of an undisturbed run


def start(name: str, folder: Path) -> subprocess.Popen[str]:
    """The work in a process of its own, once it has begun."""
    command = [sys.executable, __file__, "--child", name, str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "begin":
            return process
    raise RuntimeError(f"{name} did not begin: {process.communicate()[1]}")


def disturb(name: str, kills: int, rng: np.random.Generator, base: Path) -> Outcome:
    """Kill the work so many times, beginning it anew whenever it is done, and compare each end with
    an undisturbed one.
    """
    work = WORKS[name]
    whole = base / "undisturbed"
    whole.mkdir()
    for _ in range(2):  # the first time compiles
        shutil.rmtree(whole)
        whole.mkdir()
        process, since = start(name, whole), time.perf_counter()
        _, said = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{name} failed undisturbed: {said}")
        seconds = time.perf_counter() - since
    want = work.look(whole)
    done, before_any, turn = 0, 0, 0
    differs: set[str] = set()
    while done < kills:
        folder = base / f"turn-{turn}"
        folder.mkdir()
        turn += 1
        while True:
            process = start(name, folder)
            wait = (
                rng.uniform(0, min(seconds, 1.0 + work.share * seconds)) if done < kills else 600.0
            )
            try:
                _, said = process.communicate(timeout=wait)
                if process.returncode:
                    raise RuntimeError(f"{name} did not go on: {said}")
                break
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # and processes that it has started
                process.communicate()
                while _runs(process.pid):
                    time.sleep(0.05)
                done += 1
                before_any += not any(folder.iterdir())
                if work.whole and any(folder.iterdir()):
                    _look(work, folder)
        found = work.look(folder)
        differs |= found.keys() ^ want.keys()
        differs |= {
            key
            for key in found.keys() & want.keys()
            if not np.array_equal(want[key], found[key], equal_nan=want[key].dtype.kind == "f")
        }
        shutil.rmtree(folder)
    return Outcome(name, done, before_any, seconds, sorted(differs))


def _runs(group: int) -> bool:
    """Whether a process of the group has not ended yet."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = (
                stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            )
            if int(its_group) == group and state not in ("Z", "X"):
                return True
    return False


def _look(work: Work, folder: Path) -> None:
    """What a kill leaves can be read, or was never complete."""
    from pp_models.errors import InputError

    try:
        work.look(folder)
    except (InputError, FileNotFoundError) as error:
        if not any(
            word in str(error)
            for word in ("incomplete", "does not exist", "There is no", "No such file")
        ):
            raise


def table(outcomes: list[Outcome]) -> str:
    lines = [
        (
            "| work | kills | of which before anything was on disk | seconds undisturbed "
            "| ended as an undisturbed run, bit for bit |"
        ),
        "|---|---|---|---|---|",
    ]
    for one in outcomes:
        same = f"NO: {', '.join(one.differs[:20])}" if one.differs else "yes"
        lines.append(
            f"| {one.work} | {one.kills} | {one.before_any} | {one.seconds:.1f} | {same} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="of each kind of work (default: 50)")
    parser.add_argument(
        "--only",
        default=",".join(WORKS),
        help=f"kinds of work, by commas (default: all, {', '.join(WORKS)})",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=2, metavar=("WORK", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        WORKS[chosen.child[0]].do(Path(chosen.child[1]))
        return 0
    outcomes = []
    for name in WORKS:
        if name in chosen.only.split(","):
            with tempfile.TemporaryDirectory() as base:
                outcomes.append(
                    disturb(name, chosen.kills, np.random.default_rng(chosen.seed), Path(base))
                )
            print(table(outcomes[-1:]).splitlines()[-1], flush=True)
    print(f"\n{table(outcomes)}")
    return 0 if not any(one.differs for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
