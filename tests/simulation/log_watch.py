"""Watch over the log lines of simulated nodes: traced, and judged for bugs."""

import asyncio
import logging
from typing import Protocol

from tests.fakes.faults import ProcessDied
from tests.simulation.loop import SimLoop
from tests.simulation.trace import Trace


class Watcher(Protocol):
    """Who takes note of what is wrong."""

    @property
    def violations(self) -> list[str]:
        """Everything so far."""

    @property
    def power_cuts_ns(self) -> list[int]:
        """When hosts lost power."""


BUGS = ("Task failed", "Closed connection after an unexpected error")
"""What a daemon says of its own bugs where it shows no traceback."""


class LogWatch(logging.Handler):
    """Takes the nodes' log lines into the trace; what tells of a bug is a violation."""

    def __init__(self, trace: Trace, history: Watcher) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self._history = history
        self._loggers = [logging.getLogger(name) for name in ("dlogd", "dlog", "asyncio")]
        self._before: list[tuple[int, bool]] = []

    def __enter__(self) -> "LogWatch":
        for logger in self._loggers:
            self._before.append((logger.level, logger.propagate))
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger, (level, propagate) in zip(self._loggers, self._before, strict=True):
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio.events._get_running_loop()
        if isinstance(loop, SimLoop) and loop.dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ProcessDied):
            return
        message = record.getMessage().replace("\n", " ")
        self._trace("log", record.levelname, message)
        if error is not None or message.startswith(BUGS):
            place = ""
            if error is not None and error.__traceback__ is not None:
                place = place_of(error)
            self._history.violations.append(f"traceback: {message} {error!r}{place}")


def place_of(error: BaseException) -> str:
    """Return where an error was raised, for a message."""
    traceback = error.__traceback__
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f" at {code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
