"""The memory of a running process, as the system counts it."""

from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A started process, of `subprocess` or of `asyncio`."""

    pid: int


def resident_bytes(process: Process | None) -> int:
    """Return the resident memory."""
    return _bytes_of(process, "VmRSS")


def anonymous_bytes(process: Process | None) -> int:
    """Return the resident memory that no file backs."""
    return _bytes_of(process, "RssAnon")


def _bytes_of(process: Process | None, field: str) -> int:
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024
