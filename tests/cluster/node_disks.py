"""Disks of their own for the nodes of a cluster: to be filled, to fail, to lose power.

Each node has two for its logs and one for its metadata. What was not flushed when power goes is
kept or lost by sectors. Needs root and FUSE, as `tests.crash.fault_disks` tells.
"""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.crash.fault_disks import FaultDisk, fault_disk

SIZES = {"logs-a": 512 << 20, "logs-b": 512 << 20, "meta": 64 << 20}  # sparse
LOGS = ("logs-a", "logs-b")
RESERVE_BYTES = 16 << 20
SAYS_SO = ("[Errno 5]", "[Errno 28]", "[Errno 30]")
"""What a node may complain of when its disks are harmed."""


class NodeDisks:
    """The disks of some nodes. Life: a `with` block around the nodes' processes."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._disks: dict[int, dict[str, FaultDisk]] = {}
        self._numbers = range(1, count + 1)

    def __enter__(self) -> "NodeDisks":
        with ExitStack() as stack:
            for number in self._numbers:
                disks = self._disks[number] = {}
                for name, size in SIZES.items():
                    folder = self._directory / f"disks-{number}" / name
                    folder.mkdir(parents=True)
                    disks[name] = stack.enter_context(fault_disk(folder, size))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def data_of(self, number: int) -> list[Path]:
        """Return the data directories of a node."""
        return [self._disks[number][name].path / "data" for name in LOGS]

    def overrides(self, number: int) -> dict[str, str]:
        """Make the directories of a node, and return what lets it use them."""
        meta = self._disks[number]["meta"].path / "meta"
        for path in (*self.data_of(number), meta):
            path.mkdir(exist_ok=True)
        return {
            "data.directories": json.dumps([str(path) for path in self.data_of(number)]),
            "metadata.directory": json.dumps(str(meta)),
            "disk.reserve.bytes": str(RESERVE_BYTES),
        }

    @contextmanager
    def filled(self, number: int, name: str) -> Iterator[None]:
        """Let one disk be so full that the reserve is touched, for a while."""
        with self._disks[number][name].filled(RESERVE_BYTES // 2):
            yield

    def fail(self, number: int, name: str, what: str) -> None:
        """Let each write or flush of one disk fail with EIO, until it is mounted again."""
        self._disks[number][name].fail(what)

    def slow(self, number: int, seconds: float) -> None:
        """Let each flush of all disks of a node take so long, from now on."""
        for each in self._disks[number].values():
            each.slow(seconds)

    def lose_power(self, number: int, rng: random.Random) -> None:
        """Forget some of what was not flushed; nothing works any more until they are mounted."""
        for each in self._disks[number].values():
            each.lose_power(rng.getrandbits(32))

    def mount_again(self, number: int) -> None:
        """Mount the disks anew, with recovery; the node has no process."""
        for each in self._disks[number].values():
            each.remount()
