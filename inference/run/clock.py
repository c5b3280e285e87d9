"""The time that a run takes."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Seconds since it was made, plus those it began with. `standing` stops it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._begin = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def put_back(self, seconds: float) -> None:
        """Forget so many seconds."""
        self._begin += seconds

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        since = time.perf_counter()
        try:
            yield
        finally:
            self.put_back(time.perf_counter() - since)
