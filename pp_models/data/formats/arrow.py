"""Parquet, Arrow and Feather files, where pyarrow is installed: some rows at a time.

A table has a row for each document, with a list of columns and a list of counts, or a row for
each entry, with row, column and value. Rows and columns are numbers from 0. Lists come first;
further columns of the table are ignored.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pp_models.data.formats.opening import check_unpacked, fail, parsed

SUFFIXES = (".parquet", ".arrow", ".feather")
ROWS_TOGETHER = 1 << 16
_PROBLEM = "not a complete table ({}): write it again"


def tables(path: Path) -> Iterator[tuple[np.ndarray, int | None]]:
    """(entries, 3) row, column and value, and, of lists, how many rows there are so far."""
    num_rows = num_entries = 0
    with parsed(path, _PROBLEM), _batches(path) as batches:
        for batch in batches:
            lists, parts = _columns(path, batch)
            if lists:
                lengths = [np.diff(np.asarray(part.offsets)) for part in parts]
                if not np.array_equal(lengths[0], lengths[1]):
                    fail(path, "a document has more columns than counts, or fewer: write it again")
                rows = num_rows + np.repeat(np.arange(len(batch)), lengths[0])
                parts = [rows, *(part.flatten() for part in parts)]
                num_rows += len(batch)
            table = np.stack([np.asarray(part, np.float64) for part in parts], axis=1)
            num_entries += len(table)
            check_unpacked(path, 24 * num_entries)
            yield table, num_rows if lists else None


def _columns(path: Path, batch: Any) -> tuple[bool, list[Any]]:
    """The two columns of lists, or the three of numbers."""
    from pyarrow import types

    lists, numbers = [], []
    for part in batch.columns:
        if types.is_list(part.type) or types.is_large_list(part.type):
            lists.append(part)
        elif types.is_integer(part.type) or types.is_floating(part.type):
            numbers.append(part)
    found = lists[:2] if len(lists) > 1 else numbers[:3]
    if len(found) < 2 or (len(lists) < 2 and len(found) < 3):
        what = "a list of columns and one of counts, or row, column and value"
        fail(path, f"its columns {', '.join(batch.schema.names)} are not {what}: write those")
    if any(part.null_count for part in found):
        fail(path, "a value is missing: leave such entries out")
    return len(lists) > 1, found


@contextlib.contextmanager
def _batches(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        fail(path, "this format needs pyarrow: pip install 'pp-models[arrow]'", error)
    if path.suffix.lower() == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            check_unpacked(path, sum(group.total_byte_size for group in groups))
            yield file.iter_batches(ROWS_TOGETHER)
    else:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_file(source) as file:
            yield (file.get_batch(i) for i in range(file.num_record_batches))
