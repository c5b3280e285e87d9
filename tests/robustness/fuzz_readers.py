"""Every reader, fed with what libFuzzer makes of good files: whatever comes is read, or refused
with an `InputError`, in little memory and time.

    python tests/robustness/fuzz_readers.py --seconds 600                       all formats, in turn
    python tests/robustness/fuzz_readers.py --seconds 60 --formats mtx,npz       some

Prints how much was tried, and every failure once, with the file that shows it: an exception other
than `InputError`, more than 1 GB of memory beyond
what the process has when it begins, more than ten seconds, or, where glibc can look out for it,
a write past the end of an array. Needs atheris:
`pip install 'pp-models[fuzz]'`.
"""

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOM = 1 << 30  # bytes
SECONDS = 10
PIECE = 120  # seconds of a process, whose coverage tables grow by a kilobyte an input
CHECKED = Path(
    "/lib/x86_64-linux-gnu/libc_malloc_debug.so.0"
)  # glibc's, with which a write past an array's end ends the process


class Format(NamedTuple):
    """Where the bytes go, what reads them, and bytes to begin with."""

    file: str
    read: Callable[[Path], Any]
    seeds: list[bytes]
    wrap: Callable[[bytes], bytes] = lambda raw: raw


def make_formats(folder: Path) -> dict[str, Format]:
    """Good files of every format, by the project's own writers."""
    import numpy as np
    import scipy.sparse

    import inference
    from inference.core.posteriors import Variational
    from inference.io import archives
    from inference.run import fit
    from pp_models import data
    from pp_models.data import corpus, packaged, sqlite
    from pp_models.data.database import Database
    from pp_models.data.formats import readers, writers

    X = np.array([[3, 0, 1, 0], [0, 2, 0, 0], [1, 1, 1, 1], [9, 0, 0, 300]])
    made: dict[str, Format] = {}

    def check(found: Any) -> None:
        """What was let in is what models may trust."""
        for matrix in (found.matrix, found.votes):
            if scipy.sparse.issparse(matrix):
                matrix.check_format(full_check=True)
                assert np.all(np.isfinite(matrix.data)), "entries that are not finite"
        assert found.num_rows > 0, "no rows"

    def read_as(kind: str) -> Callable[[Path], Any]:
        return lambda path: check(packaged.read(path, kind))

    def both(path: Path) -> None:
        """As a whole, and some rows at a time: where both are read, they are the same."""
        whole = readers.read(path)
        check(whole)
        with contextlib.suppress(readers.InputError):  # of triples that are not sorted
            assert (
                sum(part.data.sum(dtype=np.float64) for part in readers.blocks(path)) == whole.total
            ), "blocks are not the whole"

    def add(name: str, file: str, what: Any, read: Callable[[Path], Any]) -> None:
        path = folder / "seeds" / name / file
        path.parent.mkdir(parents=True)
        made[name] = Format(file, read, [writers.write(what, path).read_bytes()])

    counts = data.counts(X)
    for name in ("csv", "mtx", "npz", "npy"):
        add(name, f"a.{name}", counts, both)
    csv, ldac = made["csv"].seeds[0], b"2 0:3 2:1\n1 1:2\n4 0:1 1:1 2:1 3:1\n2 0:9 3:300\n"
    uci = b"2\n4\n3\n1 1 3\n1 3 1\n2 2 2\n"
    made["tsv"] = Format("a.tsv", both, [csv.replace(b",", b"\t")])
    made["csv.gz"] = Format("a.csv.gz", both, [gzip.compress(csv)])
    made["ldac"] = Format("a.ldac", both, [ldac])
    made["txt"] = Format("a.txt", both, [ldac, uci])
    made["uci"] = Format("docword.a.txt", both, [uci])
    rated = data.ratings([0, 0, 1, 2], [0, 2, 1, 0], [4.0, 1.5, 5.0, -1.0])
    for name in ("csv", "npz", "npy"):
        add(f"ratings {name}", f"a.{name}", rated, read_as("ratings"))
    add("dense npy", "a.npy", data.dense(X / 3 - 1), read_as("dense"))
    made["dense csv"] = Format("a.csv", read_as("dense"), [b"a,b\n0.5,-1\n3,1e-3\n"])
    market = [
        b"array integer symmetric\n% c\n2 2\n1\n0\n3\n",
        b"coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n",
    ]
    made["market array"] = Format(
        "a.mtx", both, [b"%%MatrixMarket matrix " + rest for rest in market]
    )
    made["votes"] = Format(
        "a.votes.csv",
        lambda path: check(readers.read_text_and_votes(path)),
        [b"bill,member,vote\n0,0,1\n0,1,0\n1,1,1\n"],
    )
    made["text"] = Format(
        "a.docs", read_as("counts"), ["The cat's mat.\nUn été à Paris\n\nthe tax\n".encode()]
    )
    made["names"] = Format(
        "a.vocab", lambda path: check(packaged.read(path.with_name("a.csv"))), [b"a\nb\nc\nd\n"]
    )
    (folder / "names").mkdir()
    (folder / "names" / "a.csv").write_bytes(made["csv"].seeds[0])

    def npy(array: Any) -> bytes:
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.asarray(array))
        return stream.getvalue()

    def archive(members: dict[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as out:
            for name, raw in members.items():
                with out.open(f"{name}.npy", "w", force_zip64=True) as member:
                    member.write(raw)
        return stream.getvalue()

    matrix = scipy.sparse.csr_array(X)
    parts = {"format": npy(b"csr"), "shape": npy(matrix.shape)} | {
        name: npy(getattr(matrix, name)) for name in ("indptr", "indices", "data")
    }
    for name in parts:  # a member at a time, with a checksum that matches
        made[f"npz {name}"] = Format(
            "a.npz", both, [parts[name]], lambda raw, name=name: archive(parts | {name: raw})
        )

    rng = np.random.default_rng(0)
    problem = fit.make_problem("lda", counts, {"num_topics": 2})
    posterior = Variational(
        problem, {"beta": rng.gamma(1.0, size=(2, 4))}, {"theta": rng.gamma(1.0, size=(4, 2))}
    )
    history = {"step": np.arange(2), "seconds": np.ones(2), "bound": np.ones(2)}
    file = fit.Fit(problem, "cavi", {}, posterior, history, 1.0).save(folder / "fit.npz")
    header, arrays = archives.read(file, "fit", 1)
    members = {"header": npy(np.frombuffer(json.dumps(header).encode(), np.uint8))} | {
        name: npy(x) for name, x in arrays.items()
    }
    made["fit"] = Format("a.npz", inference.load, [file.read_bytes(), archive(members)])
    described = json.dumps(header).encode()
    made["fit header"] = Format(
        "a.npz",
        inference.load,
        [described],
        lambda raw: archive(members | {"header": npy(np.frombuffer(raw, np.uint8))}),
    )
    made["fit array"] = Format(
        "a.npz", inference.load, [members["beta/0"]], lambda raw: archive(members | {"beta/0": raw})
    )

    raw = corpus.write(folder / "seed.h5ad", [data.counts(X, [*"abcd"], [*"wxyz"])]).read_bytes()
    first, rest = raw[: corpus.SEALED], raw[corpus.SEALED :]
    made["corpus"] = Format(  # with another first block it is HDF5 alone that would be tested
        "a.h5ad",
        lambda path: check(corpus.read(path).select(np.arange(4))),
        [rest],
        lambda raw: first + raw,
    )
    with Database(4, path=folder / "database" / "a") as database:
        database.append(X)
        database.extend([1], [[1, 0, 0, 7]])
        database.append(X)
    small = "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM"  # below max_len
    with contextlib.closing(sqlite3.connect(folder / "database" / "a" / sqlite.FILE)) as file:
        file.executescript(f"{small}; PRAGMA journal_mode = WAL")

    def read_database(path: Path) -> None:
        with Database.open(path.parent, read_only=True) as database:
            if database.num_rows:
                check(database.data())
            database.lengths  # noqa: B018

    made["database"] = Format(
        f"a/{sqlite.FILE}",
        read_database,
        [(folder / "database" / "a" / sqlite.FILE).read_bytes()],
    )
    return made


def fuzz(arguments: argparse.Namespace) -> None:
    """In a process of its own: libFuzzer ends it."""
    import atheris

    folder = Path(arguments.folder)
    with atheris.instrument_imports(include=["pp_models", "inference.io.fits"]):
        from pp_models.errors import InputError

        formats = make_formats(folder)
    names = [
        name for name in formats if not arguments.formats or name in arguments.formats.split(",")
    ]
    if not names:
        sys.exit(f"There are no such formats: choose from {', '.join(formats)}.")
    corpus, failures = folder / "corpus", Path(arguments.failures)
    corpus.mkdir(exist_ok=True)
    failures.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name / formats[name].file).parent.mkdir(parents=True, exist_ok=True)
        for i, raw in enumerate(formats[name].seeds):
            (corpus / f"{number}-{i}").write_bytes(bytes([number]) + raw)
    known: set[str] = set()

    def one(raw: bytes) -> None:
        name = names[raw[0] % len(names)] if raw else names[0]
        made = formats[name]
        path = folder / name / made.file
        path.write_bytes(made.wrap(raw[1:]))
        try:
            made.read(path)
            return
        except InputError as error:
            if "memory" not in str(error) and "\n" not in str(error):
                return
            problem = f"InputError {str(error)[-60:]}"
        except Exception as error:
            ours = [
                frame
                for frame in traceback.extract_tb(error.__traceback__)
                if "pp_models" in frame.filename or "inference" in frame.filename
            ]
            problem = (
                f"{type(error).__name__} in {Path(ours[-1].filename).name}:{ours[-1].lineno}"
                if ours
                else type(error).__name__
            )
        if f"{name} {problem}" not in known:
            known.add(f"{name} {problem}")
            at = failures / f"{name.replace(' ', '_')}-{hashlib.sha256(raw).hexdigest()[:8]}"
            at.write_bytes(raw)
            print(f"FAILURE {name}: {problem}: {at}\n{traceback.format_exc()}", flush=True)

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"resident before: {resident} MB", flush=True)
    flags = [
        f"-max_total_time={arguments.seconds}",
        f"-timeout={SECONDS}",
        f"-rss_limit_mb={resident + (ROOM >> 20)}",
        "-max_len=16384",
    ]
    flags += [
        "-print_final_stats=1",
        f"-artifact_prefix={failures}/",
        f"-seed={arguments.seed}",
        "-verbosity=1",
        "-handle_abrt=0",  # glibc aborts with its heap locked: a handler would wait for ever
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *flags], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument(
        "--formats", default="", help="some of them, with commas between (default: all)"
    )
    parser.add_argument(
        "--failures",
        default="results/fuzz-failures",
        help="the folder that inputs which failed are kept in",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        fuzz(arguments)
        return
    try:
        import atheris  # noqa: F401
    except ImportError:
        sys.exit("The fuzzer needs atheris, which is not installed: pip install 'pp-models[fuzz]'.")
    environment = (
        os.environ
        | {"JAX_PLATFORMS": "cpu"}
        | ({"LD_PRELOAD": str(CHECKED), "MALLOC_CHECK_": "3"} if CHECKED.exists() else {})
    )
    tried, most, slowest, ended, left = 0, 0, 0, 0, arguments.seconds
    failures: list[str] = []
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as folder:
        while left > 0 and not ended:
            given = [
                "--seconds",
                str(min(left, PIECE)),
                "--seed",
                str(arguments.seed + left),
                "--folder",
                str(Path(folder) / str(left)),
            ]
            (Path(folder) / str(left)).mkdir()
            command = [
                sys.executable,
                __file__,
                *given,
                "--formats",
                arguments.formats,
                "--failures",
                arguments.failures,
            ]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
            )
            said, ended, left = (
                done.stdout.decode("utf-8", "replace"),
                done.returncode,
                left - PIECE,
            )
            stats = {
                name: int(x) for name, x in re.findall(r"^stat::(\w+):\s+(\d+)", said, re.MULTILINE)
            }
            failures += re.findall(
                r"^FAILURE .*(?:\n(?!FAILURE|#|stat::|Done).*)*", said, re.MULTILINE
            )
            if not stats or ended:
                print(said[-3000:])
            tried += stats.get("number_of_executed_units", 0)
            most, slowest = (
                max(most, stats.get("peak_rss_mb", 0)),
                max(slowest, stats.get("slowest_unit_time_sec", 0)),
            )
    print(*failures, sep="\n")
    print(
        f"{tried} inputs in {arguments.seconds} s, {len(failures)} failures;",
        f"the slowest took {slowest} s",
    )
    print(f"memory: {most} MB at most")
    if ended:
        print(
            f"The fuzzer's process ended with {ended}, of which a write past an array is a cause:",
            "what it said last is above.",
        )
    sys.exit(bool(failures) or ended)


if __name__ == "__main__":
    main()
