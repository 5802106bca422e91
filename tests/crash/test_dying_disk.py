"""`dlogd` with two data directories, the disk of one of which cannot be read any more.

A loop device whose image has lost its content answers every read with EIO. Needs root.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlog.errors import DlogError
from tests.crash.clients import Client, directories_online
from tests.crash.disks import Mounted, mounted_disk
from tests.daemon.process import DaemonProcess, daemon

pytestmark = pytest.mark.root

RECORDS = 400


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    with mounted_disk(tmp_path, "ext4") as found:
        yield found


def configure(node: DaemonProcess, *directories: Path) -> None:
    node.use_directories(*directories, config="segment.bytes: 64KiB\ndisk.reserve.bytes: 0\n")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path / "node") as process:
        yield process


@pytest.mark.parametrize("suffix", [".log", ".idx"])
def test_a_disk_that_cannot_be_read_goes_alone(
    node: DaemonProcess, disk: Mounted, suffix: str
) -> None:
    configure(node, disk.path)
    node.start()
    with closing(Client(node)) as client:
        client.create("dying")
        for number in range(RECORDS):
            assert client.append("dying", b"x" * 1000) == number
    assert node.stop() == 0
    other = node.folder / "other"
    configure(node, disk.path, other)
    node.start()  # nothing is in the memory of the process any more
    with closing(Client(node)) as client:
        assert client.append("dying", b"more") == RECORDS
        client.create("healthy")
        assert client.append("healthy", b"first") == 0
        assert [path.name[:7] for path in (other / "topics").iterdir()] == ["healthy"]
        disk.lose_content(suffix)
        for _ in range(2):
            with pytest.raises(DlogError):
                client.read("dying")
        assert node.process is not None and node.process.poll() is None, node.log[-2000:]
        assert directories_online(node) == {
            str(disk.path): False,
            str(other): True,
        }
        assert f"Data directory failed path={disk.path}" in node.log
        assert client.append("healthy", b"goes on") == 1
        assert client.read("healthy") == [b"first", b"goes on"]
    assert node.stop() == 0
