"""Processes that hold what a start needs: locks of directories, listening ports. Blocking.

Reads /proc (proc(5)). Of other users' processes it shows locks and ports, but not who listens.
"""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"
"""State of a socket in /proc/net/tcp: TCP_LISTEN in include/net/tcp_states.h."""


def holder_of(lock_file: str, proc: Path = PROC) -> int | None:
    """Return the process that holds a lock file by flock; None when nobody does."""
    try:
        status = os.stat(lock_file)
        lines = (proc / "locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in lines:
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == device:
            return int(fields[4])
    return None


def _listening(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield port and inode of each socket that listens."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING:
                yield int(fields[1].rpartition(":")[2], 16), fields[9]


def listens(process: int, port: int, proc: Path = PROC) -> bool:
    """Whether a process listens on a port, as far as this user may know."""
    wanted = {f"socket:[{inode}]" for found, inode in _listening(proc) if found == port}
    try:
        for descriptor in (proc / str(process) / "fd").iterdir():
            try:
                if os.readlink(descriptor) in wanted:
                    return True
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return False
    return False
