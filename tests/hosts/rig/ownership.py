"""Whose the machine's one rig is: a lock while its maker lives, and a record of what was made."""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from pathlib import Path

from tests.hosts.rig import processes
from tests.hosts.rig.commands import RigError
from tests.hosts.rig.processes import Process

# Of the machine, whatever TMPDIR says.
LOCK = Path("/run/dlog-host-rig.lock")
RECORD = Path("/run/dlog-host-rig.json")
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A rig that is there, or that an ended process left."""

    folder: str
    name: str
    net: str
    size: int
    pid: int
    boot: str
    kept: bool = False
    """Whether its maker left it on purpose."""

    def save(self) -> None:
        """Write the record, before what it describes is made."""
        new = RECORD.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(RECORD)

    @property
    def is_of_this_boot(self) -> bool:
        """Whether processes, mounts and namespaces of it can be there."""
        return self.boot == processes.boot_id()


def load() -> Record | None:
    """Return the record; None where there is no rig."""
    try:
        return Record(**json.loads(RECORD.read_text()))
    except FileNotFoundError:
        return None


def forget() -> None:
    """Remove the record, after what it describes is gone."""
    RECORD.unlink(missing_ok=True)


class Lock:
    """The right to make, to use and to clear the rig. The kernel frees it when the holder dies."""

    def __init__(self) -> None:
        self._file: TextIOWrapper | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._file is not None

    def acquire(self, wait_s: float) -> None:
        """Wait for the lock so long; then raise RigError, which names the holder."""
        file = LOCK.open("a+")
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = _holder(file)
                    file.close()
                    raise RigError(
                        f"Another rig is on this machine, and did not end in {wait_s:.0f} s. "
                        f"Wait for its process, or end it: {holder}."
                    ) from None
                time.sleep(LOOK_S)
            else:
                break
        found = Process.of(os.getpid())
        assert found is not None
        file.truncate(0)
        file.write(json.dumps(found))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None


def _holder(file: TextIOWrapper) -> str:
    """Return the holder's number and command line."""
    file.seek(0)
    try:
        process = Process(*json.loads(file.read()))
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except (ValueError, OSError):
        return "unknown"
    return f"pid {process.pid} ({line.decode(errors='replace').strip()[:200]})"
