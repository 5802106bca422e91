"""The trace of a run: a hash of everything that happened, and the lines when they are wanted.

Two runs of one seed have the same hash, in any process.
"""

import hashlib
from collections.abc import Callable


class Trace:
    """Takes events; `digest` sums them up."""

    def __init__(
        self, now_ns: Callable[[], int], print_line: Callable[[str], None] | None = None
    ) -> None:
        self._now_ns = now_ns
        self._hash = hashlib.blake2b(digest_size=8)
        self._print_line = print_line
        self.count = 0

    def __call__(self, kind: str, *fields: object) -> None:
        """Take one event."""
        now_ns = self._now_ns()
        line = f"{now_ns} {kind} {' '.join(map(str, fields))}\n"
        self._hash.update(line.encode())
        self.count += 1
        if self._print_line is not None:
            self._print_line(f"{now_ns / 1e9:11.6f} {kind:9} {' '.join(map(str, fields))}")

    def digest(self) -> str:
        """Return the hash of all events so far."""
        return self._hash.hexdigest()
