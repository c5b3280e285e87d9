"""Soak: streaming at full speed for an hour, recording memory, open files and compilations.

    python benchmarks/soak.py [--minutes 60] [--lead 10] [--folder PLACE] [--log FILE]

Rows arrive in a database on disk as fast as they are learned from (LDA, 50 topics, 5,000 words, 256
new documents per step, and a few more words for 32 old ones), with a checkpoint every ten seconds.
Every ten seconds it records the process's anonymous memory (pages mapped from files can be taken
back by the system), open files and compiled programs. The first `lead` minutes are warm-up. Prints
a JSON line: first, least and most memory, the slope of a straight line through it, compilations and
open files since the lead, and steps per second in the first and last tenth. The exit status is 1 if
memory changed by more than 2 %, or anything was compiled or left open.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import scipy.sparse
from _common import parse

import inference

jax.config.update("jax_num_cpu_devices", 1)  # a stream as users start it

TOPICS, WORDS, LENGTH, BATCH, OLD = 50, 5000, 80, 256, 32
FLAT = 0.02  # largest relative change of memory after the lead
POOL = 20_000  # documents that arrive again and again


def draw(rng: np.random.Generator) -> scipy.sparse.csr_array:
    """Documents of sparse topics."""
    topics = rng.dirichlet(np.full(WORDS, 0.02), TOPICS)
    rows = []
    for weights in rng.dirichlet(np.full(TOPICS, 0.1), POOL):
        words = rng.choice(WORDS, LENGTH, p=weights @ topics)
        counts = np.bincount(words, minlength=WORDS)[None].astype(np.float32)
        rows.append(scipy.sparse.csr_array(counts))
    return scipy.sparse.vstack(rows).tocsr()


def own_megabytes() -> float:
    """Anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def main() -> int:
    chosen = parse(
        __doc__,
        minutes=60.0,
        lead=(10.0, "minutes of warm-up, which are not counted (default: 10)"),
        folder=(None, "where to make the database (default: a temporary folder)"),
        log=(None, "a file to write every record into"),
    )
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    rng = np.random.default_rng(0)
    pool = draw(rng)
    looks: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        hyper = {"num_topics": TOPICS, "alpha": "learn"}
        kept = {"path": Path(folder) / "rows", "checkpoint_seconds": 10.0}
        options = {"batch_size": BATCH, "num_inner": 3}
        stream = inference.stream("lda", WORDS, hyper=hyper, **kept, **options)
        begin, number = time.perf_counter(), 0
        with stream:
            while (now := time.perf_counter() - begin) < 60 * chosen.minutes:
                first = number * BATCH % (POOL - BATCH)
                stream.append(pool[first : first + BATCH])
                old = rng.choice(stream.num_rows, OLD, replace=False)
                stream.add(np.repeat(old, 3), rng.integers(0, WORDS, 3 * OLD))
                stream.step()
                number += 1
                if now >= 10 * len(looks):
                    look = {"seconds": now, "mb": own_megabytes(), "steps": number}
                    look |= {"files": len(os.listdir("/proc/self/fd")), "compiled": len(compiled)}
                    looks.append(look)
                    if chosen.log:
                        said = json.dumps({"looks": looks, "rows": stream.num_rows})
                        Path(chosen.log).write_text(said)
            rows = stream.num_rows
    found = summary(looks, 60 * chosen.lead) | {"rows": rows}
    print(json.dumps(found))
    changes = [abs(found[name] / found["mb_first"] - 1) for name in ("mb_most", "mb_least")]
    kept_open = found["files_last"] != found["files_first"]
    return int(max(changes) > FLAT or found["compiled_since"] != 0 or kept_open)


def summary(looks: list[dict[str, float]], lead: float) -> dict[str, float]:
    """The figures of the records after the lead."""
    after = [look for look in looks if look["seconds"] >= lead]
    seconds, mb = (np.array([look[name] for look in after]) for name in ("seconds", "mb"))
    slope = np.polyfit(seconds / 3600, mb, 1)[0]
    tenth = max(2, len(after) // 10)

    def speed(part: list[dict[str, float]]) -> float:
        return (part[-1]["steps"] - part[0]["steps"]) / (part[-1]["seconds"] - part[0]["seconds"])

    found = {
        "minutes": seconds[-1] / 60,
        "steps": after[-1]["steps"],
        "mb_first": mb[0],
        "mb_least": mb.min(),
        "mb_most": mb.max(),
        "mb_per_hour": slope,
        "percent_per_hour": 100 * slope / mb.mean(),
        "files_first": after[0]["files"],
        "files_last": after[-1]["files"],
        "compiled_since": after[-1]["compiled"] - after[0]["compiled"],
        "steps_per_second_first": speed(after[:tenth]),
        "steps_per_second_last": speed(after[-tenth:]),
    }
    return {name: round(float(value), 3) for name, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
