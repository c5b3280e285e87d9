"""Soak: streaming at full speed for an hour, with memory, open files and compilations written down.

    python benchmarks/soak.py [--minutes 60] [--lead 10] [--folder PLACE] [--log FILE]

Rows arrive in a database on disk as fast as they are learned from (LDA, 50 topics, 5,000 words, 256 new documents a step, and a few words more for
32 old ones), with a checkpoint every ten seconds. Every ten seconds it looks at the process: memory of its own (anonymous pages; what is mapped from
files the system takes back when it needs it), open files, programs compiled. What comes before `lead` minutes are over is warming up. Prints a JSON
line: memory at the beginning, at its least and most, the slope of a straight line through it, compilations and open files since the lead, and steps
per second in the first and last tenth; ends with 1 where memory has changed by more than 2 %, or anything was compiled or left open.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse

TOPICS, WORDS, LENGTH, BATCH, OLD = 50, 5000, 80, 256, 32
FLAT = 0.02  # how far memory may leave what it was after the lead
POOL = 20_000  # documents that are drawn, and arrive again and again


def draw(rng: np.random.Generator) -> scipy.sparse.csr_array:
    """Documents of sparse topics."""
    topics = rng.dirichlet(np.full(WORDS, 0.02), TOPICS)
    rows = []
    for weights in rng.dirichlet(np.full(TOPICS, 0.1), POOL):
        words = rng.choice(WORDS, LENGTH, p=weights @ topics)
        rows.append(
            scipy.sparse.csr_array(np.bincount(words, minlength=WORDS)[None].astype(np.float32))
        )
    return scipy.sparse.vstack(rows).tocsr()


def own_megabytes() -> float:
    """Memory that is this process's alone."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon")
    )
    return int(line.split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument(
        "--lead",
        type=float,
        default=10,
        help="minutes of warming up, which are not counted (default: 10)",
    )
    parser.add_argument("--folder", help="where to make the database (default: a temporary folder)")
    parser.add_argument("--log", help="a file to write every look into")
    chosen = parser.parse_args()
    import jax

    import inference

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    rng = np.random.default_rng(0)
    pool = draw(rng)
    looks = []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        hyper = {"num_topics": TOPICS, "alpha": "learn"}
        stream = inference.stream(
            "lda",
            WORDS,
            hyper=hyper,
            path=Path(folder) / "rows",
            checkpoint_seconds=10.0,
            batch_size=BATCH,
            num_inner=3,
        )
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
                    files = len(os.listdir("/proc/self/fd"))
                    looks.append(
                        {
                            "seconds": now,
                            "mb": own_megabytes(),
                            "files": files,
                            "compiled": len(compiled),
                            "steps": number,
                        }
                    )
                    if chosen.log:
                        Path(chosen.log).write_text(
                            json.dumps({"looks": looks, "rows": stream.num_rows})
                        )
            rows = stream.num_rows
    found = told(looks, 60 * chosen.lead) | {"rows": rows}
    print(json.dumps(found))
    flat = (
        max(
            abs(found["mb_most"] / found["mb_first"] - 1),
            abs(found["mb_least"] / found["mb_first"] - 1),
        )
        <= FLAT
    )
    return (
        0
        if flat and found["compiled_since"] == 0 and found["files_last"] == found["files_first"]
        else 1
    )


def told(looks: list[dict[str, float]], lead: float) -> dict[str, float]:
    """What the looks after the lead say."""
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
    }
    found |= {
        "mb_per_hour": slope,
        "percent_per_hour": 100 * slope / mb.mean(),
        "files_first": after[0]["files"],
        "files_last": after[-1]["files"],
    }
    found |= {"compiled_since": after[-1]["compiled"] - after[0]["compiled"]}
    found |= {
        "steps_per_second_first": speed(after[:tenth]),
        "steps_per_second_last": speed(after[-tenth:]),
    }
    return {name: round(float(value), 3) for name, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
