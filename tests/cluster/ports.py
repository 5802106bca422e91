"""Ports that no other test is given, not even while nobody listens there."""

import fcntl
import os
import tempfile
from functools import cache
from pathlib import Path

from dlogctl.sandbox.layout import free_ports

_claimed: set[int] = set()


def claim_ports(count: int) -> list[int]:
    """Return free ports that are this process's until it ends: its nodes come back to their own.

    A port that is free may be that of another test's node, which was killed and will be started
    again. A claim is a lock on the byte of that number in a file that all tests share; the system
    releases it when the process ends (fcntl(2), advisory record locking).
    """
    ports: list[int] = []
    while len(ports) < count:
        ports += [each for each in free_ports(count - len(ports)) if _claim(each)]
    return ports


@cache
def _claims() -> int:
    """Return the file; it stays open, for closing it would release all locks of the process."""
    path = Path(tempfile.gettempdir(), f"dlog-test-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _claim(port: int) -> bool:
    if port in _claimed:
        return False
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _claimed.add(port)
    return True
