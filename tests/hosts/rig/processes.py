"""Processes by number and start time, so that no signal reaches a later process of that number."""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

_STATE, _START = 0, 19  # fields of /proc/PID/stat after the name, man 5 proc


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


class Process(NamedTuple):
    """One process of this machine, of this boot."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the process that has this number now."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, int(stat[_START]))

    @property
    def lives(self) -> bool:
        """Whether it runs; a zombie does not: the init of some machines reaps late."""
        stat = _stat(self.pid)
        return stat is not None and int(stat[_START]) == self.start and stat[_STATE] not in "ZX"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process lives."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.lives:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def wait(self, timeout_s: float) -> bool:
        """Return whether the process has ended in time."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return not self.lives or bool(poll.poll(int(timeout_s * 1000))) or not self.lives
        finally:
            os.close(descriptor)


def children(pid: int) -> list[int]:
    """Return the children of the first thread of a process."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def status(pid: int, field: str) -> str:
    """Return a field of /proc/PID/status; empty where the process is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return line.partition(":")[2].strip()
    return ""


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
