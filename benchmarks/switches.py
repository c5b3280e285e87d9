"""How often one small fit changes from one file of the packages to another.

    python benchmarks/switches.py            prints the number of switches and the files
    python benchmarks/switches.py --trace    prints every one of them first

Counted are calls (and resumed generators) from a file of pp_models/ or inference/ into another,
during the second `fit("lda", engine="svi")` of two steps in a process: the first one imports and
compiles. Frames of JAX and of the standard library between two files of the packages do not count.
"""

import collections
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import inference
import pp_models

FOLDERS = tuple(f"{ROOT / name}/" for name in ("pp_models", "inference"))


def fit(data):
    options = {"num_epochs": 1, "batch_size": 4}
    return inference.fit("lda", data, "svi", {"num_topics": 2}, progress=False, **options)


def crossings(function, *arguments):
    """Calls (caller's file, callee's file) between two files of the packages, in order."""
    found = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(FOLDERS):
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(FOLDERS):
                caller = caller.f_back
            files = [one.f_code.co_filename for one in (caller, frame) if one is not None]
            if len(set(files)) == 2:
                found.append([str(Path(file).relative_to(ROOT)) for file in files])

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return found


def main():
    data = pp_models.data.counts(np.random.default_rng(0).poisson(1.0, (8, 6)))
    fit(data)
    found = crossings(fit, data)
    if "--trace" in sys.argv:
        print("\n".join(" -> ".join(pair) for pair in found))
    called = collections.Counter(callee for _, callee in found)
    print(f"{len(found)} switches between {len({file for pair in found for file in pair})} files")
    for file, number in called.most_common():
        print(f"{number:5d} {file}")


if __name__ == "__main__":
    main()
