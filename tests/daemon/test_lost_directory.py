"""A data directory that is gone: what was on it is refused, never begun anew, and comes back."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.one_partition import append, read_all
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import client_of


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path) as process:
        yield process


def test_an_unmounted_disk_never_becomes_an_empty_partition(node: DaemonProcess) -> None:
    first, second = node.folder / "disk1", node.folder / "disk2"
    first.mkdir()
    second.mkdir()
    node.use_directories(first, second)
    node.start()
    with client_of(node) as client:
        client.run(lambda: client.admin.create_topic("t", partitions=1))
        assert append(client, b"kept") == 0
    home = next(disk for disk in (first, second) if any((disk / "topics").iterdir()))
    assert node.stop() == 0
    away = node.folder / "away"
    home.rename(away)
    home.mkdir()  # what an unmounted disk leaves: its mount point
    for _ in range(3):
        node.start()
        assert node.status()["partitions"] == {"led": 0, "offline": 1}
        assert not node.status()["healthy"]
        assert node.stop() == 0
    shutil.rmtree(home)
    away.rename(home)
    node.start()
    with client_of(node) as client:
        assert read_all(client) == [b"kept"]
