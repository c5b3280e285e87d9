"""Stopping on request: Ctrl-C (SIGINT) and SIGTERM, noted until the work under way is safe.

    with Interruption(True) as asked:
        ...a step...
        if asked.signal:
            ...save, and raise Stopped(asked.signal)

The first signal is noted. A second one ends at once, as does the first where nothing is to be made
safe.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Stopped by a signal, with everything safe. The exit status is 128 + the signal's number."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message or f"stopped by {signal.Signals(number).name}.")
        self.signal = number


class Interruption:
    """Notes signals while it is entered. defer: whether to do so.

    Outside the main thread, which alone receives signals, it does nothing.
    """

    def __init__(self, defer: bool) -> None:
        self._defer = defer and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self.signal: int | None = None

    def __enter__(self) -> "Interruption":
        if self._defer:
            for number in SIGNALS:
                if signal.getsignal(number) not in (None, signal.SIG_IGN):  # stay ignored
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        if self.signal is not None:
            raise Stopped(number)
        self.signal = number


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, by an exception: half-written files are removed."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
