"""Ctrl-C as a request for an orderly end.

The first one (or SIGTERM, or the end of the terminal) interrupts what waits, and lets everything
else finish what it does; the second one interrupts whatever is going on.

`orderly_end` is for commands that need no such distinction, and undo what they did.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Handles the signals of this process. Owner: the main thread. Life: a `with` block."""

    def __init__(self) -> None:
        self.count = 0
        self._is_waiting = False
        self._before: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> Self:
        heard = [*SIGNALS]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else `nohup` wants it so
            heard.append(signal.SIGHUP)
        self._before = [(each, signal.signal(each, self._on_signal)) for each in heard]
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._is_waiting or self.count > 1:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise KeyboardInterrupt within the block at a signal, also at one that came before."""
        self._is_waiting = True
        try:
            if self.count:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_waiting = False


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM, and the end of the terminal, raise KeyboardInterrupt as Ctrl-C does."""
    heard = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else `nohup` wants it so
        heard.append(signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # Not raised here: asyncio makes SIGINT cancel what it runs, and nothing goes on after that.
        signal.raise_signal(signal.SIGINT)

    before = [(each, signal.signal(each, interrupt)) for each in heard]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
