"""Being asked to stop: Ctrl-C (SIGINT) and SIGTERM, noted until what is under way has been made safe.

    with Interruption(True) as asked:
        ...a step...
        asked.check()          # raises Stopped where a signal has come

The first signal is noted, and acted on at the next `check`; a second one ends at once, as does the first where nothing is to be made safe.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Stopped by a signal, with what there was made safe. The command line prints it and exits with 128 + the signal's number."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message or f"stopped by {signal.Signals(number).name}.")
        self.signal = number


class Interruption:
    """Notes signals while it is entered. defer: whether to; if not, or outside the main thread, which alone is told of signals, it does nothing."""

    def __init__(self, defer: bool) -> None:
        self._defer = defer and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self.signal: int | None = None

    def __enter__(self) -> "Interruption":
        if self._defer:
            for number in SIGNALS:
                if signal.getsignal(number) not in (None, signal.SIG_IGN):  # who ignores a signal means it
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        if self.signal is not None:
            raise Stopped(number)
        self.signal = number

    def check(self) -> None:
        """Raise Stopped where a signal has come."""
        if self.signal is not None:
            raise Stopped(self.signal)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does, by an exception: files half written are then removed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
