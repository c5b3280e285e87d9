"""Files that are truncated, bit-flipped or made to do harm: each is refused in a sentence, or read
as exactly what was written.

    python tests/robustness/test_hostile_files.py        counts files tried, refused, read unchanged
    python tests/robustness/test_hostile_files.py all    every length and bit; then: kinds to try

Text without checksums cannot know a digit from another: of text only gzipped files are flipped
here, and `fuzz_readers.py` tries the rest.
"""

import contextlib
import gzip
import io
import itertools
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import scipy.sparse

import inference
from inference.calibration import files
from inference.core import registry
from inference.core.posteriors import Draws, Point, Variational
from inference.io import archives
from inference.run import checkpoint, loop
from inference.run import fit as fitting
from inference.run import stream as streams
from pp_models import data
from pp_models.data import corpus, packaged, sqlite
from pp_models.data.database import ENTRY, Database
from pp_models.data.formats import opening, readers
from pp_models.errors import InputError

REFERENCE = Path(__file__).parents[1] / "references" / "pmf.npz"
ROWS = np.array([[3, 0, 1, 0], [0, 2, 0, 0], [1, 1, 1, 1], [0, 0, 0, 5], [9, 0, 0, 300]])
LENGTHS, FLIPS = 40, 160  # tried of every kind, unless all are


class Kind(NamedTuple):
    """A kind of file: the files that are damaged one at a time, how they are read, and what may
    come of it.
    """

    files: list[Path]
    read: Callable[[], Any]
    accepted: list[Any]
    costly: int = 1  # how many times fewer are tried


class Tally(NamedTuple):
    tried: int
    refused: int
    unchanged: int
    wrong: list[str]


def plain(x: Any) -> Any:
    """Contents as something that can be compared."""
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    if isinstance(x, tuple | list):
        return [plain(value) for value in x]
    if isinstance(x, data.Data):
        return [x.kind, x.hash, x.column_names, x.row_names]
    return [x.dtype.str, x.shape, x.tobytes()] if isinstance(x, np.ndarray | jax.Array) else x


# Good files ---------------------------------------------------------------------------------------


def lda_fit(kind: str = "variational") -> fitting.Fit:
    """Made by hand: nothing is compiled."""
    rng = np.random.default_rng(0)
    problem = fitting.make_problem(
        "lda", data.counts(ROWS, column_names=[*"abcd"]), {"num_topics": 2}
    )
    theta, beta = (rng.gamma(2.0, size=shape).astype(np.float32) for shape in ((5, 2), (2, 4)))
    posterior: Any = Variational(problem, {"beta": beta}, {"theta": theta})
    if kind == "point":
        posterior = Point(problem, {})
        posterior.values = {"theta": theta, "beta": beta}
    if kind == "draws":
        posterior = Draws(
            problem,
            {"theta": np.stack([[theta] * 3] * 2), "beta": np.stack([[beta] * 3] * 2)},
            {"accept": np.ones((2, 3))},
        )
    history = {
        "step": np.arange(3),
        "seconds": np.arange(3.0),
        "bound": np.array([-3.0, -2.0, np.nan]),
    }
    engine = {"variational": "cavi", "point": "map", "draws": "gibbs"}[kind]
    return fitting.Fit(problem, engine, {"basis": "log", "num_steps": 3}, posterior, history, 1.5)


def fit_contents(fit: fitting.Fit) -> Any:
    posterior = fit.posterior
    found = (
        posterior.draws
        if isinstance(posterior, Draws)
        else {s: posterior.natural(s) for s in posterior.sites}
        if posterior.kind == "variational"
        else posterior.values
    )
    return plain(
        [
            fit.engine,
            fit.options,
            fit.hyper._asdict(),
            fit.history,
            fit.seconds,
            fit.provenance,
            found,
            getattr(posterior, "sample_stats", 0),
        ]
    )


def a_database(folder: Path) -> None:
    with Database(4, path=folder, column_names=[*"abcd"], tags={"about": "tests"}) as database:
        database.append(ROWS)
        database.extend([1], [[1, 0, 0, 7]])
        database.append(np.tile(ROWS, (8, 1)))
    with contextlib.closing(
        sqlite3.connect(folder / sqlite.FILE, isolation_level=None)
    ) as connection:
        connection.executescript(
            "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM;PRAGMA journal_mode = WAL"
        )  # few bits without a use


def contents_of_database(database: Database) -> Any:
    return [
        *plain(database.data()),
        database.total,
        database.tags,
        database.lengths.tolist(),
    ]


def read_database(folder: Path) -> Any:
    with Database.open(folder, read_only=True) as database:
        return contents_of_database(database)


STREAM = {
    "model": "lda",
    "num_columns": 4,
    "hyper": {"num_topics": 2},
    "batch_size": 2,
    "num_inner": 1,
}


def read_stream(folder: Path) -> Any:
    with inference.stream(path=folder, **STREAM) as stream:
        assert stream.problem is not None, "the state is gone"
        found = plain(
            [
                stream.problem.hyper._asdict(),
                stream._state._asdict(),
                stream.history,
                stream._seen,
                stream._first_rows,
                stream._seconds,
            ]
        )
        stream.checkpoint = lambda: None  # as it was found
        return found


def a_checkpoint(file: Path) -> checkpoint.Checkpoints:
    """Of a run by svi whose first step is not made: nothing is compiled."""
    engine, key = registry.load_engine("svi"), jax.random.key(0)
    problem = fitting.make_problem("lda", data.counts(ROWS), {"num_topics": 2})
    options = engine.settle(registry.make_options(engine, {"batch_size": 2}), problem.data)
    run = loop.Run(problem, engine.build(problem, options), "svi", options)
    run.state = run.algorithm.init(key, {})
    run.history = [{"step": 0, "seconds": 1.0, "bound": -1.0}]
    recipe = checkpoint.recipe_of(problem, engine, options, key, None, 0)
    keeper = checkpoint.Checkpoints(checkpoint.Plan(file), recipe, "lda by svi")
    keeper._write(run)
    return keeper


def make_kinds(folder: Path) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    rng = np.random.default_rng(1)
    arrays = {
        "a/0": rng.normal(size=(3, 4)),
        "b": np.array(True),
        "c": np.arange(5, dtype=np.int16),
        "d/e": np.zeros((0, 2), np.float32),
        "é": np.ones((2, 3), order="F"),
    }
    file = folder / "plain.npz"
    archives.write(file, {"format": 1, "text": "as written"}, arrays)
    kinds["archive"] = Kind(
        [file], lambda: plain(archives.read(folder / "plain.npz", "file", 1)), []
    )
    for kind in ("variational", "point", "draws"):
        file = lda_fit(kind).save(folder / f"{kind}.npz")
        kinds[f"fit, {kind}"] = Kind(
            [file],
            lambda file=file: fit_contents(inference.load(file)),
            [fit_contents(lda_fit(kind))],
        )
    file = Path(shutil.copy(REFERENCE, folder / "reference.npz"))
    kinds["reference"] = Kind(
        [file], lambda: plain(files.load(folder / "reference.npz")._asdict()), [], 3
    )
    file = folder / "run.checkpoint"
    keeper = a_checkpoint(file)
    kinds["checkpoint"] = Kind([file], lambda: plain(keeper.read()), [])
    with inference.stream(path=folder / "stream", **STREAM) as stream:
        stream.append(ROWS)
        stream._begin()
        stream._history = [{"step": 0, "seconds": 1.0, "bound": -1.0}]
    kinds["stream"] = Kind(
        [folder / "stream" / "learned.npz"], lambda: read_stream(folder / "stream"), [], 2
    )
    for name, matrix in (
        ("csr", scipy.sparse.csr_array(ROWS)),
        ("coo", scipy.sparse.coo_array(ROWS)),
    ):
        scipy.sparse.save_npz(folder / f"{name}.npz", matrix)
        kinds[f"sparse matrix, {name}"] = Kind(
            [folder / f"{name}.npz"],
            lambda name=name: plain(readers.read(folder / f"{name}.npz")),
            [],
        )
    _zip_csv(folder / "zipped.csv.gz")
    kinds["gzipped text"] = Kind(
        [folder / "zipped.csv.gz"], lambda: plain(readers.read(folder / "zipped.csv.gz")), []
    )
    file = corpus.write(folder / "corpus.h5ad", [data.counts(ROWS, [*"abcd"], [*"vwxyz"])])
    kinds["corpus"] = Kind(
        [file], lambda: plain(corpus.read(folder / "corpus.h5ad").select(np.arange(5))), []
    )
    a_database(folder / "database")
    kinds["database"] = Kind(
        [folder / "database" / sqlite.FILE], lambda: read_database(folder / "database"), []
    )
    return {
        name: kind._replace(accepted=[*kind.accepted, kind.read()]) for name, kind in kinds.items()
    }


def _zip_csv(file: Path) -> None:
    lines = "".join(
        f"{row},{column},{ROWS[row, column]}\n"
        for row, column in zip(*np.nonzero(ROWS), strict=True)
    )
    file.write_bytes(gzip.compress(lines.encode(), mtime=0))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return make_kinds(tmp_path_factory.mktemp("hostile"))


KINDS = (
    "archive",
    "fit, variational",
    "fit, point",
    "fit, draws",
    "reference",
    "checkpoint",
    "stream",
    "sparse matrix, csr",
    "sparse matrix, coo",
    "gzipped text",
    "corpus",
    "database",
)


# Truncation and flips -----------------------------------------------------------------------------


def damages(raw: bytes, everything: bool, fewer: int, rng: np.random.Generator) -> Iterator[bytes]:
    """The file cut off, and with single bits flipped: at places drawn evenly over it and over its
    last bytes, where directories are.
    """
    size = len(raw)
    lengths: Iterable[int] = (
        range(size)
        if everything
        else np.unique(np.r_[0, 1, size - 1, rng.integers(0, size, LENGTHS // fewer)]).tolist()
        if size
        else []
    )
    yield from (raw[:length] for length in lengths)
    places: Iterable[int] = (
        range(8 * size)
        if everything
        else rng.choice(8 * size, min(FLIPS // fewer, 8 * size), replace=False).tolist()
    )
    for place in places:
        flipped = bytearray(raw)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)
    if size:
        yield raw + b"\0"
    if size and raw[:2] != b"\x1f\x8b":  # two gzipped files, one after the other, are one
        yield raw + raw


def attempt(kind: Kind, damaged: Iterator[bytes], file: Path, raw: bytes) -> Tally:
    tried = refused = unchanged = 0
    wrong = []
    try:
        for contents in damaged:
            if contents == raw:
                continue
            tried += 1
            file.write_bytes(contents)
            try:
                found = kind.read()
            except InputError as error:
                refused += 1
                if "\n" in str(error) or len(str(error)) > 600:
                    wrong.append(f"{file.name}: no sentence: {error}")
            except Exception as error:
                wrong.append(f"{file.name}: {type(error).__name__}: {error}")
            else:
                if found in kind.accepted:
                    unchanged += 1
                else:
                    wrong.append(f"{file.name} of {len(contents)} bytes was let in")
    finally:
        file.write_bytes(raw)
    return Tally(tried, refused, unchanged, wrong)


def damage(kind: Kind, everything: bool = False) -> Tally:
    """All files of a kind, one at a time; added up."""
    parts = []
    for number, file in enumerate(kind.files):
        raw = file.read_bytes()
        fewer = kind.costly * (1 if len(kind.files) == 1 else 2)
        parts.append(
            attempt(kind, damages(raw, everything, fewer, np.random.default_rng(number)), file, raw)
        )
    return Tally(*(sum((part[i] for part in parts), [] if i == 3 else 0) for i in range(4)))


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_are_refused_or_harmless(kinds, name):
    found = damage(kinds[name])
    assert (
        found.wrong == []
        and found.tried > 30
        and found.refused > found.tried / 3
        and found.refused + found.unchanged == found.tried
    )
    assert kinds[name].read() == kinds[name].accepted[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name != "reference"])
def test_every_length_and_every_bit(kinds, name):
    found = damage(kinds[name], everything=True)
    assert found.wrong == [] and found.refused + found.unchanged == found.tried


STARTS = [
    [0, 2, 3, 7, -5],
    [0, 2, 3, 7, -(2**31)],
    [0, 9, 3, 7, 9],
    [1, 2, 3, 7, 9],
    [0, -2, 3, 7, 9],
    [0, 2, 3, 7, 2**31 - 1],
]


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_starts_of_rows_that_do_not_ascend_are_refused(tmp_path, form):
    """With a negative last one SciPy checks nothing and writes past its arrays."""
    indices = np.array([0, 1, 2, 0, 1, 2, 3, 0, 3], np.int32)
    path, parts = tmp_path / "lie.npz", {"format": form.encode(), "shape": (4, 4)}
    for starts in STARTS:
        parts |= {"indptr": np.array(starts, np.int32), "indices": indices}
        np.savez(path, data=np.ones(9, np.int32), **parts)
        reads = [lambda kind=kind: packaged.read(path, kind) for kind in ("counts", "ratings")]
        for read in (*reads, lambda: list(readers.blocks(path))):
            with pytest.raises(InputError, match=r"lie\.npz") as caught:
                read()
            assert "\n" not in str(caught.value)


# Archives made to do harm -------------------------------------------------------------------------

HEADER = {"format": 1}


def npy(x: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(x), allow_pickle=True)
    return file.getvalue()


def text(value: Any) -> bytes:
    return npy(
        np.frombuffer(value if isinstance(value, bytes) else json.dumps(value).encode(), np.uint8)
    )


def head(said: str, payload: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """An array whose header says anything."""
    raw = said.encode() + b"\n"
    return (
        b"\x93NUMPY"
        + version
        + len(raw).to_bytes(2 if version == b"\1\0" else 4, "little")
        + raw
        + payload
    )


def zipped(
    *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b""
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.comment = comment
        for name, raw in members:
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(raw)
    return file.getvalue()


def with_flags(raw: bytes, flags: int) -> bytes:
    out = bytearray(raw)
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = -1
        while (at := raw.find(mark, at + 1)) >= 0:
            out[at + place : at + place + 2] = flags.to_bytes(2, "little")
    return bytes(out)


def by_hand(
    entries: list[tuple[str, bytes, dict[str, int]]], directory: list[int] | None = None
) -> bytes:
    """An archive in which local headers and directory may say anything: `size` and `method` are
    what is declared.
    """
    out, listed = b"", []
    for name, raw, said in entries:
        size, method = said.get("size", len(raw)), said.get("method", 0)
        fields = (
            20,
            0,
            method,
            0,
            33,
            said.get("crc", zlib.crc32(raw)),
            said.get("packed", size),
            size,
        )
        listed.append(
            struct.pack(
                "<4s6H3L5H2L",
                b"PK\1\2",
                20,
                *fields[:5],
                *fields[5:],
                len(name),
                0,
                0,
                0,
                0,
                0,
                said.get("offset", len(out)),
            )
            + name.encode()
        )
        out += struct.pack("<4s5H3L2H", b"PK\3\4", *fields, len(name), 0) + name.encode() + raw
    listed = [listed[i] for i in (range(len(listed)) if directory is None else directory)]
    place, body = len(out), b"".join(listed)
    return (
        out
        + body
        + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(listed), len(listed), len(body), place, 0)
    )


def hostile_archives() -> dict[str, bytes]:
    good = ("header.npy", text(HEADER))
    number = npy(np.arange(3.0))
    form = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}".format
    found = {
        "nothing": b"",
        "an empty archive": zipped(),
        "no header": zipped(("a.npy", number)),
        "compressed": zipped(good, ("a.npy", number), method=zipfile.ZIP_DEFLATED),
        "packed by bzip2": zipped(good, ("a.npy", number), method=zipfile.ZIP_BZIP2),
        "encrypted": with_flags(zipped(good, ("a.npy", number)), 1),
        "two of one name": by_hand(
            [(*good, {}), ("a.npy", number, {}), ("a.npy", npy(np.ones(3)), {})]
        ),
        "two headers": by_hand([(*good, {}), (*good, {})]),
        "another archive inside": zipped(good, ("a.npy", zipped(good))),
        "overlapping": by_hand(
            [(*good, {}), ("a.npy", number, {}), ("b.npy", b"", {"size": len(number), "offset": 0})]
        ),
        "one member listed twice": by_hand([(*good, {}), ("a.npy", number, {})], [0, 1, 1]),
        "longer than the file": by_hand([(*good, {}), ("a.npy", number, {"size": 2**31})]),
        "packed smaller than it is": by_hand(
            [(*good, {}), ("a.npy", number, {"size": 2**30, "packed": len(number)})]
        ),
        "another checksum": by_hand([(*good, {}), ("a.npy", number, {"crc": 1})]),
        "a header that is no JSON": zipped(("header.npy", text(b"{"))),
        "a header that is no UTF-8": zipped(("header.npy", text(b"\xff\xfe{}"))),
        "a header that is a list": zipped(("header.npy", text([1]))),
        "a header nested deeply": zipped(
            ("header.npy", text(b'{"format": 1, "a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"))
        ),
        "a header with a huge number": zipped(
            ("header.npy", text(b'{"format": ' + b"9" * 10**5 + b"}"))
        ),
        "a header without a format": zipped(("header.npy", text({}))),
        "another format": zipped(("header.npy", text({"format": 2}))),
        "a header of reals": zipped(("header.npy", number)),
    }
    arrays = {
        "objects": npy(np.array([{}, []], object)),
        "structured": npy(np.zeros(2, [("a", int), ("b", float)])),
        "void": npy(np.zeros(2, "V8")),
        "strings": npy(np.array(["a", "b"])),
        "bytes": npy(np.array([b"a"])),
        "times": npy(np.zeros(2, "M8[s]")),
        "complex": npy(np.ones(2, complex)),
        "a huge shape": head(form("<f8", f"({10**12},)")),
        "a shape that overflows": head(form("<f8", f"({2**62}, {2**62})")),
        "an empty shape that overflows": head(form("<f8", f"(0, {10**15 - 1}, {10**15 - 1})")),
        "a negative shape": head(form("<f8", "(-1, -1)"), bytes(8)),
        "a shape too small": head(form("<f8", "(1,)"), bytes(16)),
        "a shape too large": head(form("<f8", "(3,)"), bytes(16)),
        "many dimensions": head(form("|u1", "(" + "1, " * 80 + "1)"), b"\0"),
        "code in it": head(form("<f8", "(__import__('os').getpid(),)")),
        "a long header": head(form("<f8", "(1,)") + " " * 60000, bytes(8)),
        "version 2": head(form("<f8", "(1,)"), bytes(8), b"\2\0"),
        "a header beyond the member": b"\x93NUMPY\1\0\xff\xff",
        "nothing": b"",
        "no array": b"hello, world",
        "nested brackets": head("(" * 3000),
    }
    return found | {
        f"an array of {name}" if name[0] != "a" else name: zipped(good, ("a.npy", raw))
        for name, raw in arrays.items()
    }


HOSTILE = hostile_archives()


@pytest.mark.parametrize(
    "read", [lambda file: archives.read(file, "fit", 1), inference.load, files.load]
)
def test_hostile_archives_are_refused(tmp_path, read):
    for name, raw in HOSTILE.items():
        (tmp_path / "hostile.npz").write_bytes(raw)
        with pytest.raises(InputError, match=r"hostile\.npz") as caught:
            read(tmp_path / "hostile.npz")
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400, name


def test_the_constructions_are_refused_for_what_is_wrong_with_them(tmp_path):
    """The same archive with nothing wrong is read: what is refused above is refused for its one
    fault.
    """
    file = tmp_path / "good.npz"
    for good in (
        zipped(("header.npy", text(HEADER)), ("a.npy", npy(np.arange(3.0)))),
        by_hand([("header.npy", text(HEADER), {}), ("a.npy", npy(np.arange(3.0)), {})]),
    ):
        file.write_bytes(good)
        header, arrays = archives.read(file, "file", 1)
        assert header == HEADER and arrays["a"].tolist() == [0, 1, 2]
    np.savez(
        file, header=np.frombuffer(b'{"format": 1}', np.uint8), a=np.arange(3.0), b=np.float32(2)
    )  # as before there was `archives`
    assert plain(archives.read(file, "file", 1)[1]) == plain(
        {"a": np.arange(3.0), "b": np.array(2, np.float32)}
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"a": np.array([None])},
        {"a": np.ones(2, complex)},
        {"a": np.array("x")},
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path, bad):
    with pytest.raises(InputError):
        archives.write(tmp_path / "file.npz", HEADER, bad)


# Archives that are whole but lie ------------------------------------------------------------------

V, D = "variational", "draws"
LIES: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], Any]]] = {
    "no model": (V, lambda h, a: h.pop("model")),
    "an unknown model": (V, lambda h, a: h.update(model="lds")),
    "another model": (V, lambda h, a: h["data"].update(kind="ratings") or h.update(model="pmf")),
    "a mixture without a grid": (V, lambda h, a: h.update(kind="mixture")),
    "an unknown kind": (V, lambda h, a: h.update(kind="none")),
    "10**9 topics": (V, lambda h, a: h["hyper"].update(num_topics=10**9)),
    "topics that are text": (V, lambda h, a: h["hyper"].update(num_topics="2")),
    "an unknown hyper-parameter": (V, lambda h, a: h["hyper"].update(gamma=1.0)),
    "hyper-parameters that are a list": (V, lambda h, a: h.update(hyper=[1])),
    "no data": (V, lambda h, a: h.pop("data")),
    "10**12 columns": (V, lambda h, a: h["data"].update(columns=10**12)),
    "a site missing": (V, lambda h, a: a.pop("beta/0")),
    "a leaf too many": (V, lambda h, a: a.update({"beta/1": np.ones((2, 4))})),
    "draws of some sites": (D, lambda h, a: a.pop("theta/0")),
}  # fmt: skip


def lie(
    source: Path,
    file: Path,
    change: Callable[[dict[str, Any], dict[str, Any]], Any],
    version: int = 1,
) -> None:
    header, arrays = archives.read(source, "file", version)
    change(header, arrays)
    archives.write(file, header, arrays)


@pytest.mark.parametrize("kind", [V, D])
def test_a_fit_that_lies_is_refused(kinds, tmp_path, kind):
    for change in (change for lies, change in LIES.values() if lies == kind):
        lie(kinds[f"fit, {kind}"].files[0], tmp_path / "lie.npz", change)
        with pytest.raises(InputError, match=r"lie\.npz") as caught:
            inference.load(tmp_path / "lie.npz")
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


REFERENCE_LIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "kind": lambda h, a: h.update(kind="sounds"),
    "recipe": lambda h, a: h.update(recipe=[]),
    "hash": lambda h, a: h["recipe"].update(data_hash=None),
    "hyper": lambda h, a: h["hyper"].update(rank=10**9),
    "labels": lambda h, a: h.update(labels=h["labels"][:-1]),
    "a site": lambda h, a: a.pop("draws/u"),
    "draws": lambda h, a: a.update({"draws/u": a["draws/u"][:, 1:]}),
    "pivot": lambda h, a: a.update({"pivot/u": a["pivot/u"][1:]}),
    "summary": lambda h, a: a.pop("first/rhat"),
    "shape of the data": lambda h, a: a.update({"data/shape": np.array([10**15, 10**15])}),
    "no data": lambda h, a: a.pop("data/values"),
    "log joint": lambda h, a: a.update(log_joint=a["log_joint"][0]),
}


@pytest.mark.parametrize("name", REFERENCE_LIES)
def test_a_reference_that_lies_is_refused(tmp_path, name):
    lie(REFERENCE, tmp_path / "lie.npz", REFERENCE_LIES[name])
    with pytest.raises(InputError, match=r"lie\.npz") as caught:
        files.load(tmp_path / "lie.npz")
    assert "\n" not in str(caught.value)


STREAM_LIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "no state": lambda h, a: h.pop("state"),
    "another type": lambda h, a: h.update(state=["named", "subprocess", "Popen", []]),
    "rows": lambda h, a: h.update(seen=10**9),
    "an array": lambda h, a: a.pop("state/0"),
    "history": lambda h, a: a.update({"history/step": np.arange(9)}),
    "key": lambda h, a: h.update(key=[0, 1]),
}


@pytest.mark.parametrize("name", STREAM_LIES)
def test_a_stream_that_lies_is_refused(kinds, tmp_path, name):
    shutil.copytree(kinds["stream"].files[0].parent, tmp_path / "stream")
    lie(
        kinds["stream"].files[0],
        tmp_path / "stream" / "learned.npz",
        STREAM_LIES[name],
        streams.FORMAT,
    )
    with pytest.raises(InputError) as caught:
        read_stream(tmp_path / "stream")
    assert "\n" not in str(caught.value)
    shutil.copy(kinds["stream"].files[0], tmp_path / "stream" / "learned.npz")
    assert (
        read_stream(tmp_path / "stream") == kinds["stream"].accepted[-1]
    )  # the refusal has left everything as it was


# Databases that lie -------------------------------------------------------------------------------


DATABASE_LIES: list[dict[str, Any]] = [
    {"num_columns": -1},
    {"num_columns": "4"},
    {"kind": []},
    {"kind": "ratings"},
    {"format": 9},
    {"column_names": 7},
    {"column_names": ["a"]},
    {"tags": 3},
    {"num_columns": 10**12},
]


def test_a_database_header_that_lies_is_refused(tmp_path):
    """With a checksum that matches."""
    a_database(tmp_path / "database")
    with contextlib.closing(sqlite.File(tmp_path / "database", True)) as file:
        header = file.header() | {"format": sqlite.FORMAT}
    for change in DATABASE_LIES:
        raw = json.dumps(header | change).encode()
        forge(tmp_path / "database", "facts", sqlite.HEADER, raw)
        with pytest.raises(InputError) as caught:
            read_database(tmp_path / "database")
        assert "\n" not in str(caught.value)


def forge(folder: Path, table: str, row: int, blob: bytes) -> None:
    with contextlib.closing(sqlite3.connect(folder / sqlite.FILE)) as connection, connection:
        connection.execute(f"REPLACE INTO {table} VALUES (?, ?, ?)", sqlite.signed(row, blob))


ROW_LIES = [
    [(4, 1)],
    [(-1, 1)],
    [(2, 1), (1, 1)],
    [(1, 1), (1, 1)],
    [(0, 0)],
    [(0, -1)],
    [(0, np.nan)],
    [(0, 2.0**24)],
]


def test_rows_that_lie_are_refused(tmp_path):
    """With checksums that match: wrong columns, wrong counts, half an entry."""
    a_database(tmp_path / "database")
    for raw in (b"1234", *(np.array(entries, ENTRY).tobytes() for entries in ROW_LIES)):
        forge(tmp_path / "database", "rows", 2, raw)
        with pytest.raises(InputError, match=r"is damaged \(a row has a wrong"):
            read_database(tmp_path / "database")


def test_a_number_of_rows_that_lies_is_refused(tmp_path):
    a_database(tmp_path / "database")
    for state in (b"7", *(struct.pack("<qd", number, 1.0) for number in (10**12, -1, 44, 46))):
        forge(tmp_path / "database", "facts", sqlite.STATE, state)
        with pytest.raises(InputError, match="is damaged"):
            read_database(tmp_path / "database")


def test_a_database_with_more_in_it_is_refused(tmp_path):
    """A view or trigger of somebody else's never runs."""
    a_database(tmp_path / "database")
    with contextlib.closing(sqlite3.connect(tmp_path / "database" / sqlite.FILE)) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END")
    with pytest.raises(InputError, match="is damaged"):
        read_database(tmp_path / "database")


@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_database_row_that_announces_any_size_is_refused(tmp_path, page):
    """Of the schema, of the facts and of the rows: SQLite says that it ran out of memory."""
    a_database(tmp_path / "database")
    file = tmp_path / "database" / sqlite.FILE
    raw, begin = bytearray(file.read_bytes()), 512 * page
    pointer = begin + (108 if page == 0 else 8)  # to the first cell; a file begins with 100 bytes
    cell = begin + int.from_bytes(raw[pointer : pointer + 2], "big")
    raw[cell : cell + 9] = b"\xff" * 9  # the largest length there is
    file.write_bytes(raw)
    with pytest.raises(InputError, match="damaged"):
        read_database(tmp_path / "database")


def test_sqlites_words_are_one_line(tmp_path):
    """They quote the names of tables, which damage may fill with line ends."""
    a_database(tmp_path / "database")
    file = tmp_path / "database" / sqlite.FILE
    raw = file.read_bytes().replace(b"tablerowsrows", b"table\n\n\n\nrows")
    file.write_bytes(raw.replace(b"CREATE TABLE rows", b"CREATE TABLX rows"))
    with pytest.raises(InputError, match=r"is damaged .*schema") as caught:
        read_database(tmp_path / "database")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["array", "coordinate"])
def test_symmetric_matrices_are_square(tmp_path, form):
    """SciPy mirrors the entries of a symmetric matrix, and past the end of one that is not."""
    file = tmp_path / "lie.mtx"
    sizes, entries = ("2 27", "1\n" * 60) if form == "array" else ("2 27 1", "2 27 1\n")
    file.write_text(f"%%MatrixMarket matrix {form} integer symmetric\n{sizes}\n{entries}")
    with pytest.raises(InputError, match="2 x 27 is not symmetric"):
        readers.read(file)


def test_hdf5_never_sees_a_damaged_corpus(tmp_path, monkeypatch):
    """It may not return: every byte is compared with the checksum before HDF5 opens the file."""
    file = corpus.write(tmp_path / "x.h5ad", [data.counts(ROWS, [*"abcd"], [*"vwxyz"])])
    raw = file.read_bytes()
    monkeypatch.setattr(corpus.h5ad, "opened", lambda path: pytest.fail("opened"))
    for place in np.random.default_rng(0).integers(corpus.SEALED, len(raw), 20):
        damaged = bytearray(raw)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        for read in (corpus.read, corpus.open_source):
            with pytest.raises(InputError, match="does not match its checksum"):
                read(file)


# What unpacks to far more than it is --------------------------------------------------------------

CHILD = """
import json, resource, sys, time
from inference.io import archives
from pp_models.data import packaged
from pp_models.data.formats import readers
from pp_models.errors import InputError
import inference
room = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
def resident(which):
    found = (line for line in open("/proc/self/status") if line.startswith(which))
    return int(next(found).split()[1]) / 1024
for kind, path in json.loads(sys.argv[1]):
    open("/proc/self/clear_refs", "w").write("5")  # the largest so far is forgotten
    begin, before = time.perf_counter(), resident("VmRSS")
    try:
        if kind == "fit":
            inference.load(path)
        elif kind == "blocks":
            for block in readers.blocks(path):
                pass
        else:
            packaged.read(path, kind)
        said = "read"
    except InputError as error:
        said = "refused: " + str(error)
    except BaseException as error:
        said = type(error).__name__ + str(error)
    print(json.dumps([kind, path, said, time.perf_counter() - begin, resident("VmHWM") - before]))
"""


def many_times(raw: bytes, times: int) -> bytes:
    return gzip.compress(raw, mtime=0) * times


def bombs(folder: Path, gigabytes: int) -> list[tuple[str, str]]:
    """Small files that unpack to many gigabytes, or say that they do."""
    size = 1 << 24
    times = (gigabytes << 30) // size
    texts = {
        "zeros.csv.gz": bytes(size),
        "lines.csv.gz": b"\n" * size,
        "entries.csv.gz": b"0,0,1\n" * (size // 6),
        "entries.ldac.gz": b"1 0:1\n" * (size // 6),
        "rows.ldac.gz": b"0\n" * (size // 2),
        "lines.docs.gz": b"the cat sat on the mat again and again\n" * (size // 40),
        "word.docs.gz": b"a" * size,
        "comments.mtx.gz": b"%\n" * (size // 2),
        "docword.zeros.txt.gz": b"1\n" * (size // 2),
        "table.tsv.gz": b"1\t2\t3\n" * (size // 6),
        "number.tsv.gz": b"1" * size,
    }
    out = []
    for name, raw in texts.items():
        first = (
            gzip.compress(b"%%MatrixMarket matrix coordinate integer general\n")
            if name.endswith(".mtx.gz")
            else b""
        )
        (folder / name).write_bytes(first + many_times(raw, times))
        out += [("dense" if name.endswith(".tsv.gz") else "counts", name)] + (
            [("blocks", name)] if ".docs" not in name and ".tsv" not in name else []
        )
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = (packer.compress(bytes(size)) + packer.flush(zlib.Z_FULL_FLUSH)) * min(times, 200)
    packed += packer.flush()
    long = head("{'descr': '<i4', 'fortran_order': False, 'shape': (" + str(2**30 - 50) + ",), }")
    start = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = start.compress(long) + start.flush(zlib.Z_FULL_FLUSH) + packed
    said = {"size": len(long) + 4 * (2**30 - 50), "packed": len(packed), "method": 8}
    rest = [
        ("format.npy", npy(b"csr"), {}),
        ("shape.npy", npy([5, 4]), {}),
        ("indptr.npy", npy([0, 1, 1, 1, 1, 2**30 - 50]), {}),
    ]
    (folder / "packed.npz").write_bytes(
        by_hand([*rest, ("indices.npy", packed, said), ("data.npy", packed, said)])
    )
    (folder / "fit.npz").write_bytes(
        by_hand([("header.npy", text(HEADER), {}), ("a.npy", packed, said)])
    )
    claims = [("data.npy", long, {}), ("indices.npy", long, {})]
    (folder / "claims.npz").write_bytes(by_hand([*rest, *claims]))
    (folder / "claims-fit.npz").write_bytes(
        by_hand([("header.npy", text(HEADER), {}), ("a.npy", long, {})])
    )
    (folder / "claims.npy").write_bytes(
        head(
            "{'descr': '<i4', 'fortran_order': False, 'shape': ("
            + str(10**6)
            + ", "
            + str(10**6)
            + "), }"
        )
    )
    (folder / "claims.mtx").write_bytes(
        b"%%MatrixMarket matrix coordinate integer general\n1000000000 1000000000 1\n1 1 1\n"
    )
    (folder / "array.mtx").write_bytes(
        b"%%MatrixMarket matrix array integer symmetric\n1000000000 1000000000\n1\n"
    )
    (folder / "docword.claims.txt").write_bytes(b"1000000000\n1000000000\n1\n1 1 1\n")
    (folder / "claims.csv").write_bytes(b"2000000000,2000000000,1\n")
    (folder / "claims.ldac").write_bytes(b"1 2000000000:1\n")
    names = (
        "packed.npz",
        "claims.npz",
        "claims.npy",
        "claims.mtx",
        "array.mtx",
        "docword.claims.txt",
        "claims.csv",
        "claims.ldac",
    )
    out += [(kind, name) for name in names for kind in ("counts", "blocks")] + [
        ("fit", "fit.npz"),
        ("fit", "claims-fit.npz"),
    ]
    return [(kind, str(folder / name)) for kind, name in out] + [
        ("ratings", str(folder / name)) for name in ("packed.npz", "claims.npz", "claims.npy")
    ]


def set_off(folder: Path, gigabytes: int) -> list[Any]:
    """Kind, path, what was said, seconds and further megabytes of memory, in a process that may
    take 1 GB more than it has when it starts to read.
    """
    found = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(bombs(folder, gigabytes))],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_unpacking_stops_early(tmp_path):
    """A gigabyte of lines in a megabyte of gzip is unpacked in proportion to what was read of it.

    A line of a gigabyte is not read to its end, and text that varies is read as a whole.
    """
    most = opening.SOME_BYTES + opening.MOST_TIMES * (2 << 17)
    (tmp_path / "lines.csv.gz").write_bytes(
        many_times((b"0,0,1" + b" " * 2000 + b"\n") * (1 << 13), 64)
    )
    (tmp_path / "zeros.csv.gz").write_bytes(many_times(bytes(1 << 24), 64))
    some = [line.hex().encode() + b"\n" for line in [np.random.default_rng(0).bytes(1 << 14)] * 999]
    (tmp_path / "good.csv.gz").write_bytes(gzip.compress(b"".join(some), 1))
    found = {}
    for name in ("lines", "good"):
        found[name] = 0
        with contextlib.suppress(InputError):
            for line in opening.lines(tmp_path / f"{name}.csv.gz"):
                found[name] += len(line)
    assert found["good"] == sum(map(len, some)) and 0 < found["lines"] < most
    for name, kind in itertools.product(("zeros", "lines"), ("counts", "dense", "ratings")):
        with pytest.raises(InputError, match=rf"{name}\.csv\.gz.*(times its|longer than)"):
            packaged.read(tmp_path / f"{name}.csv.gz", kind)


def test_what_is_declared_is_not_allocated(tmp_path):
    """Archives of bytes that announce gigabytes are refused before any memory is asked for."""
    said = [
        (kind, path)
        for kind, path in bombs(tmp_path, 0)
        if not path.endswith(".gz") and "packed" not in path
    ]
    assert len(said) > 15
    for kind, path in said:
        tracemalloc.start()
        with pytest.raises(InputError) as caught:
            inference.load(path) if kind == "fit" else list(
                readers.blocks(path)
            ) if kind == "blocks" else packaged.read(path, kind)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20 and "memory" not in str(caught.value), (kind, path, peak)


@pytest.mark.slow
def test_bombs_are_refused_in_little_memory_and_time(tmp_path):
    """Files of megabytes that unpack to 10 GB, and files of bytes that ask for as much: refused,
    not for want of memory.
    """
    for kind, path, said, seconds, megabytes in set_off(tmp_path, 10):
        assert (
            said.startswith("refused")
            and "memory" not in said
            and seconds < 60
            and megabytes < 1000
        ), (kind, path, said, seconds, megabytes)


if __name__ == "__main__":
    everything = "all" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        found = make_kinds(Path(folder))
        print(f"{'kind':22} {'tried':>8} {'refused':>8} {'unchanged':>9} {'wrong':>6}")
        total = np.zeros(4, int)
        for name in sorted({*KINDS} & {*sys.argv[1:]}) or KINDS:
            one = damage(found[name], everything and name != "reference")
            row = [one.tried, one.refused, one.unchanged, len(one.wrong)]
            total += row
            print(
                f"{name:22} {row[0]:8} {row[1]:8} {row[2]:9} {row[3]:6}", *one.wrong[:3], flush=True
            )
        print(f"{'total':22} {total[0]:8} {total[1]:8} {total[2]:9} {total[3]:6}")
        made = {
            "archives": HOSTILE,
            "fits": LIES,
            "references": REFERENCE_LIES,
            "streams": STREAM_LIES,
        }
        print("constructions:", ", ".join(f"{len(some)} {what}" for what, some in made.items()))
    with tempfile.TemporaryDirectory() as folder:
        for kind, path, said, seconds, megabytes in set_off(Path(folder), 10):
            print(
                f"{kind:8} {Path(path).name:22} {os.path.getsize(path) / 2**20:6.1f} MB",
                f"{seconds:6.1f} s {megabytes:6.0f} MB more  {said[:20]}",
            )
