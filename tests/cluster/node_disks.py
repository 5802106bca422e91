"""Disks of their own for the nodes of a cluster: to be filled, to fail, to lose power.

Each node has one for its logs and one for its metadata. Needs root, as `tests.crash.disks` tells.
"""

import json
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from tests.crash.disks import Mounted, mounted_disk, run

LOGS_BYTES = 1 << 30  # sparse
META_BYTES = 64 << 20
RESERVE_BYTES = 16 << 20
UNMOUNT_S = 20.0


class NodeDisks:
    """Two disks for each of some nodes. Life: a `with` block around the nodes' processes."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self.logs: dict[int, Mounted] = {}
        self.meta: dict[int, Mounted] = {}
        self._numbers = range(1, count + 1)

    def __enter__(self) -> "NodeDisks":
        with ExitStack() as stack:
            for number in self._numbers:
                for disks, name, size in (
                    (self.logs, "logs", LOGS_BYTES),
                    (self.meta, "meta", META_BYTES),
                ):
                    folder = self._directory / f"disks-{number}" / name
                    folder.mkdir(parents=True)
                    disks[number] = stack.enter_context(mounted_disk(folder, "ext4", size))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def overrides(self, number: int) -> dict[str, str]:
        """Make the directories of a node, and return what lets it use them."""
        self.data_of(number).mkdir(exist_ok=True)
        (self.meta[number].path / "meta").mkdir(exist_ok=True)
        return {
            "data.directories": json.dumps([str(self.data_of(number))]),
            "metadata.directory": json.dumps(str(self.meta[number].path / "meta")),
            "disk.reserve.bytes": str(RESERVE_BYTES),
        }

    def data_of(self, number: int) -> Path:
        """Return the data directory of a node."""
        return self.logs[number].path / "data"

    def fail_logs(self, number: int) -> None:
        """Let everything that touches the logs of a node fail with EIO, until it is mounted."""
        run("xfs_io", "-x", "-c", "shutdown", str(self.logs[number].path))

    def lose_power(self, number: int) -> None:
        """Forget what is not on the disks; nothing is written any more until they are mounted."""
        for each in (self.logs[number], self.meta[number]):
            run("xfs_io", "-x", "-c", "shutdown", str(each.path))

    def mount_again(self, number: int) -> None:
        """Mount the disks anew, with recovery; the node has no process."""
        for each in (self.logs[number], self.meta[number]):
            deadline_s = time.monotonic() + UNMOUNT_S
            while True:
                try:
                    each.remount()
                    break
                except subprocess.CalledProcessError as error:
                    # What a killed process had under way ends a moment later.
                    if time.monotonic() > deadline_s:
                        raise AssertionError(f"{each.path}: {error.stderr}") from error
                    time.sleep(0.1)
