"""What can be wrong with a simulated disk: errors, latency, and the death of its user.

Values only; `tests.fakes.disk` asks them at each operation.
"""

import errno
import random
from dataclasses import dataclass


class ProcessDied(BaseException):
    """The simulated process ended in the middle of an operation.

    Not an `Exception`: production code must not be able to go on after it.
    """


class PartlyWrittenError(OSError):
    """A write has ended in the midst."""


@dataclass(slots=True)
class DiskFault:
    """An error that operations on matching paths end with.

    Operations: open, create, names, read, write, sync, sync_directory, rename, unlink, mkdir,
    truncate, preallocate, size, usage, lock. `count` is how often it strikes; None: until healed.
    With `writes_part` a part of what a write that it strikes was given is in the file, as with
    a disk that becomes full in the midst of it.
    """

    operations: tuple[str, ...]
    errno: int = errno.EIO
    count: int | None = None
    path_part: str = ""
    probability: float = 1.0
    writes_part: bool = False

    def strikes(self, operation: str, path: str, rng: random.Random) -> bool:
        """Return whether this operation fails; counts down when it does."""
        if operation not in self.operations or self.path_part not in path or self.count == 0:
            return False
        if self.probability < 1.0 and rng.random() >= self.probability:
            return False
        if self.count is not None:
            self.count -= 1
        return True


WRITING = ("write", "sync", "create", "rename", "unlink", "mkdir", "truncate", "preallocate")


def read_only() -> DiskFault:
    """Return what a file system does after it found itself broken."""
    return DiskFault(operations=(*WRITING, "sync_directory"), errno=errno.EROFS)


@dataclass(slots=True)
class Latency:
    """Seconds that an operation takes: a fixed part and an exponential one, both times `factor`."""

    fixed: float = 0.0
    mean: float = 0.0
    factor: float = 1.0

    def draw(self, rng: random.Random) -> float:
        """Return the next operation's seconds."""
        if not self.fixed and not self.mean:
            return 0.0
        return (self.fixed + (rng.expovariate(1.0 / self.mean) if self.mean else 0.0)) * self.factor
