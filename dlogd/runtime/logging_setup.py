"""Setup of logging: text or JSON on standard error, or the journal's own fields.

One event per line, `key=value` after its sentence. JSON and the journal get the values as fields,
from the arguments of the call and never from the line (`dlogd.runtime.log_events`). No traceback
unless the level is debug: an exception is one pair more. A reader that does not read costs lines
(counted), never the event loop. Set up by `dlogd.__main__`.
"""

import json
import logging
import os
import select
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from dlogd.runtime import log_events
from dlogd.runtime.journald import JOURNAL_ADDRESS, open_journal

LineFormat = Literal["text", "json", "journal"]

WRITE_BYTES_MAX = 4096  # what a pipe that polls as writable takes without blocking
PATIENCE_MS = 10
WINDOW_S = 10
REPETITIONS_MAX = 1000  # lines with the same text in one window; debug lines are not counted
TEXTS_MAX = 1000
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


def _debugging() -> bool:
    return logging.getLogger().isEnabledFor(logging.DEBUG)


def _failure_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _innermost_place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown"


def _failure_fields(record: logging.LogRecord, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what a failure was and where it came from, unless the call says so itself."""
    failure = _failure_of(record)
    if failure is not None:
        if "error" not in names:
            yield "error", f"{type(failure).__name__}: {failure}"
        yield "at", _innermost_place(failure)


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """Return the fields of a record by name; no value can make or change another one."""
    fields = dict(log_events.fields_of(record))
    for name, value in _failure_fields(record, fields):
        fields[name] = log_events.escaped(value)
    return fields


def message_of(record: logging.LogRecord) -> str:
    """Return the event as one line; an exception adds what it was and where it came from."""
    try:
        message = log_events.message_of(record)
    except (TypeError, ValueError) as error:
        message = f"{record.msg} format_error={str(error)!r}"
    failed = _failure_fields(record, dict(log_events.fields_of(record)))
    message += "".join(f" {name}={log_events.shown(name, value)}" for name, value in failed)
    # What peers send ends up here: neither a line of its own nor a command to the terminal.
    return log_events.escaped(message)


def _traceback_of(record: logging.LogRecord) -> str | None:
    failure = _failure_of(record)
    if failure is None or not _debugging():
        return None
    return "".join(traceback.format_exception(failure)).rstrip()


def _timestamp(created: float) -> str:
    moment = datetime.fromtimestamp(created, UTC)
    return f"{moment.isoformat(timespec='milliseconds')[:-6]}Z"


def format_text(record: logging.LogRecord) -> str:
    """Format a record for people; with a traceback below it only when debugging."""
    line = f"{_timestamp(record.created)} {record.levelname} {record.name}: {message_of(record)}"
    trace = _traceback_of(record)
    return line if trace is None else line + "\n    " + trace.replace("\n", "\n    ")


def format_json(record: logging.LogRecord) -> str:
    """Format a record as one JSON object on one line."""
    message = message_of(record)
    entry: dict[str, Any] = {
        "timestamp": _timestamp(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": message,
    }
    if fields := fields_of(record):
        entry["fields"] = fields
    if (trace := _traceback_of(record)) is not None:
        entry["traceback"] = trace
    return json.dumps(entry, ensure_ascii=False)


def journal_fields(record: logging.LogRecord) -> list[tuple[str, str]]:
    """Return the journal's fields of a record (systemd.journal-fields(7)); ours have DLOG_."""
    message = message_of(record)
    fields = [
        ("MESSAGE", message),
        ("PRIORITY", str(_PRIORITIES.get(record.levelno, 5))),
        ("SYSLOG_IDENTIFIER", "dlogd"),
        ("LOGGER", record.name),
        ("CODE_FILE", record.pathname),
        ("CODE_LINE", str(record.lineno)),
        ("CODE_FUNC", record.funcName or ""),
    ]
    for name, value in fields_of(record).items():
        fields.append((f"DLOG_{name.upper().replace('.', '_')}"[:64], value))
    if (trace := _traceback_of(record)) is not None:
        fields.append(("TRACEBACK", trace))
    return fields


class Repetitions:
    """Counts how often each message comes, so that a client cannot fill disks by making us log.

    Messages are told apart by their text before arguments are put in. Bounded: TEXTS_MAX.
    """

    def __init__(self) -> None:
        self._window = 0
        self._counts: dict[object, int] = {}

    def is_too_many(self, record: logging.LogRecord) -> bool:
        """Count a record; return whether it is beyond what one window may hold."""
        count = self._counts.get(record.msg, 0) + 1
        if count > 1 or len(self._counts) < TEXTS_MAX:
            self._counts[record.msg] = count
        return count > REPETITIONS_MAX and record.levelno > logging.DEBUG

    def end_window(self, created: float) -> list[tuple[object, int]]:
        """Return (message, how many were left out) when a new window begins with `created`."""
        window = int(created) // WINDOW_S
        if window == self._window:
            return []
        ended = [(text, n - REPETITIONS_MAX) for text, n in self._counts.items()]
        self._window = window
        self._counts.clear()
        return [(text, count) for text, count in ended if count > 0]


def _own_record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, arguments, None)


class _LossyHandler(logging.Handler):
    """A handler that loses lines rather than wait, and says later how many."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped_count = 0
        self._dropped_reported = 0
        self._repetitions = Repetitions()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for text, count in self._repetitions.end_window(record.created):
                self._write(
                    _own_record("Left out repeated log lines count=%d text=%r", count, text)
                )
            if self._repetitions.is_too_many(record):
                return
            if self.dropped_count > self._dropped_reported:
                self._report_dropped()
            if not self._write(record):
                self.dropped_count += 1
        except Exception:  # noqa: BLE001 - a line that cannot be written must not end its caller
            self.dropped_count += 1

    def _report_dropped(self) -> None:
        count = self.dropped_count - self._dropped_reported
        if self._write(_own_record("Dropped log lines count=%d", count)):
            self._dropped_reported = self.dropped_count

    def _write(self, record: logging.LogRecord) -> bool:
        raise NotImplementedError


class DescriptorHandler(_LossyHandler):
    """Writes lines to a file, terminal, pipe or socket that may be slow. Owner: one thread."""

    def __init__(self, descriptor: int, format_line: Callable[[logging.LogRecord], str]) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._format_line = format_line
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._patience_ms = PATIENCE_MS
        self._torn = False  # the last line was cut in the middle

    def _write(self, record: logging.LogRecord) -> bool:
        text = self._format_line(record)
        data = (("\n" if self._torn else "") + text + "\n").encode("utf-8", "backslashreplace")
        for start in range(0, len(data), WRITE_BYTES_MAX):
            if not self._write_piece(data[start : start + WRITE_BYTES_MAX]):
                self._torn = self._torn or start > 0
                return False
        self._torn = False
        return True

    def _write_piece(self, piece: bytes) -> bool:
        while piece:
            events = self._poll.poll(self._patience_ms)
            # Waited once: until the reader is back, lines are dropped at once.
            self._patience_ms = PATIENCE_MS if events else 0
            if not events or not events[0][1] & select.POLLOUT:
                return False
            try:
                piece = piece[os.write(self._descriptor, piece) :]
            except BlockingIOError:
                return False
        return True


class JournalHandler(_LossyHandler):
    """Writes records with their fields to journald. Owner: one thread."""

    def __init__(self, send: Callable[[list[tuple[str, str]]], bool]) -> None:
        super().__init__()
        self._send = send

    def _write(self, record: logging.LogRecord) -> bool:
        return self._send(journal_fields(record))


@dataclass(frozen=True, slots=True)
class LogControl:
    """What can be asked of, and changed in, logging once it runs."""

    handler: _LossyHandler

    @property
    def dropped_count(self) -> int:
        """Lines lost since the start."""
        return self.handler.dropped_count

    def set_level(self, level: str) -> None:
        """Change the least severe level that is logged."""
        logging.getLogger().setLevel(level.upper())


def configure(
    line_format: str,
    level: str,
    *,
    descriptor: int = 2,
    journal_address: str = JOURNAL_ADDRESS,
) -> LogControl:
    """Send all log lines of the process where the configuration says; text where it cannot."""
    handler: _LossyHandler | None = None
    reason = ""
    if line_format == "journal":
        try:
            handler = JournalHandler(open_journal(journal_address))
        except OSError as error:
            reason = str(error)
    if handler is None:
        handler = DescriptorHandler(
            descriptor, format_json if line_format == "json" else format_text
        )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    control = LogControl(handler)
    control.set_level(level)
    # Threads and processes are of no interest here; not looking them up makes a line cheaper.
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False
    if reason:
        root.warning("No journal here, logging text to standard error error=%r", reason)
    return control
