"""Scale: a million documents in one pass, devices and processes, and the cost of a pass.

Every figure is of natural-gradient LDA (`svi`, batches of 1,000 documents, scikit-learn's stopping
rule) through `inference.fit`, on documents of about 200 tokens over 8,000 words drawn from 100
sparse topics. Fits run one after the other in processes of their own, which share neither memory
nor compiled programs. Steps that compile are not counted.

    python benchmarks/scale.py million [--store FILE] [--iterations 25]
        throughput by tenths of the pass, and memory beyond the process's own
    python benchmarks/scale.py devices [--documents 20000]
        one device against two, in turns
    python benchmarks/scale.py processes [--documents 20000]
        two processes of one device each against one of two: time, and lambda
    python benchmarks/scale.py cost --plot cost.png
        seconds against entries x topics, and against the number of documents
    python benchmarks/scale.py model --gb-per-second 1.25
        the implied time on 1, 8 and 64 hosts of such cores

Each prints one JSON line.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CORES = os.cpu_count() or 1
TOPICS, WORDS, LENGTH, BATCH = 100, 8000, 200, 1000
LEAD = 2  # steps that compile


def fit_here(chosen: argparse.Namespace) -> dict[str, Any]:
    """One pass over a store: the seconds of its steps, memory, and lambda in a file on request.

    This runs in a process of its own.
    """
    import jax

    jax.config.update("jax_num_cpu_devices", chosen.devices)
    if chosen.process_id is not None:
        jax.distributed.initialize(chosen.address, 2, chosen.process_id)
    import inference
    from pp_models.data import corpus as corpora

    corpus = corpora.read(chosen.store, verify=False)
    jax.block_until_ready(jax.numpy.zeros(1))
    before = memory()
    hyper = {"num_topics": chosen.topics, "alpha": 0.05, "eta": 0.05}
    options = {"num_epochs": chosen.epochs, "batch_size": BATCH, "bound_every": 0}
    if chosen.fixed:
        options |= {"num_local": chosen.fixed, "local_tolerance": 0.0}
    fit = inference.fit("lda", corpus, "svi", hyper, jax.random.key(0), progress=None, **options)
    if chosen.keep:
        np.save(chosen.keep, fit.posterior.natural("beta"))
    names = ("seconds", "local_iterations")
    return {
        **{name: np.round(fit.history[name], 4).tolist() for name in names},
        "entries": corpus.num_entries,
        "gb_before": before,
        "gb": memory(),
        "gb_of_store": round(Path(chosen.store).stat().st_size / 1e9, 3),
    }


def memory() -> float:
    """Peak resident memory of this process in GB; Linux counts in kB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3)


def fit_apart(
    store: Path, environment: dict[str, str] | None = None, wait: bool = True, **options: Any
) -> Any:
    """The result of `fit_here` in a new process, or the process itself without waiting."""
    command = [sys.executable, __file__, "fit", "--store", str(store)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    inherited = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=inherited)
    return finished(process) if wait else process


def finished(process: subprocess.Popen) -> dict[str, Any]:
    said = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"the fit ended with {process.returncode}")
    return json.loads(said.splitlines()[-1])


def rate(found: dict[str, Any], first: float = 0.0, last: float = 1.0, work: bool = False) -> float:
    """Documents (with `work` documents x iterations) per second between two shares of the pass."""
    seconds, iterations = np.array(found["seconds"]), np.array(found["local_iterations"])
    begin, end = (LEAD + round(share * (len(seconds) - 1 - LEAD)) for share in (first, last))
    done = iterations[begin + 1 : end + 1].sum() if work else end - begin
    return BATCH * done / (seconds[end] - seconds[begin])


def mean_iterations(found: dict[str, Any]) -> float:
    return round(float(np.mean(found["local_iterations"])), 1)


def make(folder: Path, documents: int, topics: int = TOPICS, length: int = LENGTH) -> Path:
    """Write a store of documents."""
    from corpus_store import Draws

    from pp_models.data import corpus

    return corpus.write(folder, Draws(documents, 0, topics, WORDS, length), overwrite=True)


def million(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = Path(chosen.store) if chosen.store else folder / "corpus.h5ad"
    begin = time.perf_counter()
    if not path.exists():
        make(path, chosen.documents)
    print(f"store written in {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    found = fit_apart(path, devices=CORES, topics=TOPICS, fixed=chosen.iterations)
    line: dict[str, Any] = {"documents": BATCH * len(found["seconds"]), "topics": TOPICS}
    line |= {"iterations": mean_iterations(found), "seconds": found["seconds"][-1]}
    for name, work in (("documents_per_second", False), ("document_iterations_per_second", True)):
        tenths = [round(rate(found, i / 10, (i + 1) / 10, work)) for i in range(10)]
        line[name] = {"by_tenths": tenths, "last_to_first": round(tenths[-1] / tenths[0], 3)}
    names = {"gb_of_store": "gb_of_store", "gb_before_fitting": "gb_before", "gb_peak": "gb"}
    return line | {name: found[key] for name, key in names.items()}


def devices(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path, rates = make(folder / "corpus.h5ad", chosen.documents), {1: [], 2: []}
    for _ in range(chosen.turns):
        for number in (1, 2):
            rates[number].append(rate(fit_apart(path, devices=number, topics=TOPICS, epochs=2)))
    best = {number: float(np.median(found)) for number, found in rates.items()}
    ratios = [round(two / one, 2) for one, two in zip(rates[1], rates[2], strict=True)]
    return {
        "documents_per_second": {number: round(x) for number, x in best.items()},
        "ratio": round(best[2] / best[1], 2),
        "ratios": ratios,
    }


def processes(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Two processes against one; lambda in single and, on fewer documents, double precision."""
    line: dict[str, Any] = {}
    for name, documents, environment in (
        ("float32", chosen.documents, {}),
        ("float64", 5 * BATCH, {"JAX_ENABLE_X64": "1"}),
    ):
        path = make(folder / f"{name}.h5ad", documents)
        keep = folder / f"{name}-alone.npy"
        alone = fit_apart(path, environment, devices=2, topics=TOPICS, keep=keep)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        shared = {"wait": False, "devices": 1, "topics": TOPICS, "address": address}
        started = [
            fit_apart(path, environment, process_id=i, keep=folder / f"{name}-{i}.npy", **shared)
            for i in range(2)
        ]
        together = [finished(process) for process in started]
        files = (folder / f"{name}-{which}.npy" for which in ("alone", 0, 1))
        one, *both = (np.load(file).astype(float) for file in files)
        speeds = {"one process, two devices": alone, "two processes": together[0]}
        line[name] = {
            "documents": documents,
            "documents_per_second": {which: round(rate(x)) for which, x in speeds.items()},
            "lambda, relative": float(f"{np.linalg.norm(both[0] - one) / np.linalg.norm(one):.2g}"),
            "lambda, largest relative": float(f"{np.max(np.abs(both[0] - one) / one):.2g}"),
            "same bits in both": bool(np.array_equal(*both)),
        }
    return line


def cost(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Microseconds per document against work = entries x topics x iterations.

    The lengths of documents, the number of topics and the number of documents vary.
    """
    points: list[dict[str, Any]] = []
    for name, documents, length, topics in (
        *(("topics", 8000, LENGTH, topics) for topics in (16, 32, 64, 128, 256)),
        *(("length", 8000, length, 64) for length in (50, 100, 400, 800)),
        *(("documents", number, LENGTH, 64) for number in (4000, 16_000, 64_000)),
    ):
        path = folder / f"{documents}-{length}.h5ad"
        if not path.exists():
            make(path, documents, TOPICS, length)
        found = fit_apart(path, devices=CORES, topics=topics)
        point = {
            "varied": name,
            "documents": documents,
            "entries_per_document": round(found["entries"] / documents, 1),
            "topics": topics,
            "iterations": mean_iterations(found),
            "us_per_document": round(1e6 / rate(found), 1),
        }
        points.append(point)
    work = np.array([p["entries_per_document"] * p["topics"] * p["iterations"] for p in points])
    times = np.array([p["us_per_document"] for p in points])
    slope, begin = np.polyfit(work, times, 1)
    costs = {"at no work": round(begin, 1), "per thousand units": round(1000 * slope, 4)}
    explained = round(float(np.corrcoef(work, times)[0, 1] ** 2), 4)
    if chosen.plot:
        draw(points, work, times, slope, begin, chosen.plot)
    return {"points": points, "us_per_document": costs, "explained": explained}


def model(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The time of a step on H hosts, from measured figures.

    It is the documents' work shared out, a fixed part, and an all-reduce of words x topics numbers,
    where a ring moves 2 (H - 1) / H of the table through every host. The batch is large enough to
    keep the fixed part and the exchange below a tenth.
    """
    entries, iterations = 190.0, 40.0
    rows = []
    for name, words, topics in (("small", 8000, 100), ("large", 50_000, 500)):
        table = 4.0 * words * topics
        work = 1e-3 * chosen.unit_ns * entries * topics * iterations
        per_document = 1e-6 * (chosen.row_us + work)
        fixed = chosen.table_ns * 1e-9 * words * topics
        for hosts in (1, 8, 64):
            moved = table / hosts / (1e9 * chosen.gb_per_second)
            exchange = 2 * (hosts - 1) * (moved + 1e-6 * chosen.latency_us)  # none for one host
            per_host = 9 * (fixed + exchange) / per_document
            row = {
                "tables": name,
                "hosts": hosts,
                "table_mb": round(table / 1e6, 1),
                "exchange_ms": round(1e3 * exchange, 1),
                "batch_per_host": round(per_host),
                "batch": round(hosts * per_host),
                "documents_per_second": round(hosts / (1.1111 * per_document)),
            }
            rows.append(row)
    given = {"entries": entries, "iterations": iterations, "gb_per_second": chosen.gb_per_second}
    return given | {"rows": rows}


def draw(
    points: list[dict[str, Any]], work: Any, times: Any, slope: float, begin: float, path: str
) -> None:
    from _common import pyplot, save

    figure, (left, right) = pyplot().subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for name in ("topics", "length", "documents"):
        mine = np.array([p["varied"] == name for p in points])
        left.plot(work[mine], times[mine], "o", label=f"{name} varied")
    ends = np.array([0, work.max()])
    said = f"{begin:.0f} µs + {1000 * slope:.2f} ns a unit"
    left.plot(ends, begin + slope * ends, color="0.6", label=said)
    height = {"ylabel": "microseconds per document", "ylim": (0, None)}
    left.set(xlabel="entries x topics x iterations, per document", **height)
    left.legend()
    more = [p for p in points if p["varied"] == "documents"]
    right.plot([p["documents"] for p in more], [p["us_per_document"] for p in more], "o-")
    right.set(xscale="log", xlabel="documents in the corpus", **height)
    figure.suptitle(f"LDA by svi, batches of {BATCH:,}, {CORES} cores")
    save(figure, path)


COMMANDS = {f.__name__: f for f in (million, devices, processes, cost, model)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*COMMANDS, "fit"], help="`fit` is run by the others")
    parser.add_argument("--documents", type=int)
    parser.add_argument("--store", help="file to write to or to use (default: a temporary one)")
    same = "of `million`: iterations of every document (default: until convergence)"
    parser.add_argument("--iterations", type=int, default=0, help=same)
    parser.add_argument("--turns", type=int, default=3, help="of `devices`")
    parser.add_argument("--plot", help="a PNG to draw, of `cost`")
    hidden = {"devices": CORES, "topics": TOPICS, "epochs": 1, "process-id": None, "fixed": 0}
    for name, number in hidden.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=argparse.SUPPRESS)
    for name in ("address", "keep"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    figures = {
        "row-us": (60.0, "microseconds per document beside its iterations"),
        "unit-ns": (0.074, "nanoseconds per entry x topic x iteration"),
        "table-ns": (5.0, "nanoseconds per step and word x topic"),
        "gb-per-second": (1.25, "of the network: 10 Gbit/s"),
        "latency-us": (50.0, "microseconds of each of the ring's messages"),
    }
    for name, (default, text) in figures.items():
        told = f"of `model`: {text} (default: {default})"
        parser.add_argument(f"--{name}", type=float, default=default, metavar="X", help=told)
    chosen = parser.parse_args()
    if chosen.what == "fit":
        print(json.dumps(fit_here(chosen)))
        return
    chosen.documents = chosen.documents or (1_000_000 if chosen.what == "million" else 20_000)
    with tempfile.TemporaryDirectory() as temporary:
        found = COMMANDS[chosen.what](chosen, Path(temporary))
    print(json.dumps({"benchmark": f"scale {chosen.what}", "cores": CORES, **found}))


if __name__ == "__main__":
    main()
