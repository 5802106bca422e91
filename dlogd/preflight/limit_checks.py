"""Limits of the system before a start: open files, asynchronous I/O, the clock. Blocking."""

import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dlogd.config.choices import IoEngineKind
from dlogd.config.schema import Config
from dlogd.node.open_files import open_files_needed
from dlogd.preflight.findings import Finding, never, note
from dlogd.storage.io.aio_engine import DIRECTORY_EVENTS_MAX, EVENTS_MAX

SYS = Path("/proc/sys")
_STA_UNSYNC = 0x40
_TIME_ERROR = 5
_TIMEX_BYTES = 208
"""sizeof(struct timex) on 64-bit Linux; `status` is the fourth long's successor (adjtimex(2))."""
_STATUS_OFFSET = 40


def problems(config: Config, log_count: int, *, runs: bool) -> Iterator[Finding]:
    """Say which limit is too small for this configuration and `log_count` partitions here.

    `runs`: a daemon runs here and holds already what it needs of what all processes share.
    """
    yield from _open_files(config, log_count)
    if not runs and config.io.engine is not IoEngineKind.THREADS:
        yield from _asynchronous_io(config)
    yield from _clock()


def _open_files(config: Config, log_count: int) -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files_needed(config.connections.max, log_count)
    if 0 <= hard < needed:  # -1: unlimited
        yield never(
            f"This process may open {hard} files, and connections.max with {log_count} partitions"
            f" may need {needed}: raise LimitNOFILE of the unit, or lower connections.max"
        )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _asynchronous_io(config: Config, place: Path = SYS / "fs") -> Iterator[Finding]:
    most, taken = _number(place / "aio-max-nr"), _number(place / "aio-nr")
    if most is None or taken is None:
        return
    needed = EVENTS_MAX + DIRECTORY_EVENTS_MAX * len(config.data.directories)
    if taken + needed <= most:
        return
    text = (
        f"fs.aio-max-nr is {most}, {taken} are taken, and dlogd needs {needed}: raise it with"
        " sysctl -w fs.aio-max-nr=1048576 and in /etc/sysctl.d"
    )
    yield (
        never(text)
        if config.io.engine is IoEngineKind.AIO
        else note(f"{text}; until then threads do the I/O, more slowly")
    )


def _clock() -> Iterator[Finding]:
    """Ask the kernel whether somebody keeps the clock right."""
    library = ctypes.CDLL(None, use_errno=True)
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    if not hasattr(library, "adjtimex") or os.uname().sysname != "Linux":
        return
    answer = library.adjtimex(state)
    status = int.from_bytes(state.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], "little")
    if answer == _TIME_ERROR or (answer >= 0 and status & _STA_UNSYNC):
        yield note(
            "The clock of this host is not synchronised, and retention by time depends on it:"
            " timedatectl set-ntp true"
        )
