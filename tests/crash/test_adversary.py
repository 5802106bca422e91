"""`dlogd` against what operators and disks do to it: read-only disks, exchanged and stale files."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlog.errors import DlogError
from tests.crash.clients import Client, directories_online
from tests.crash.disks import mounted_disk
from tests.daemon.process import DaemonProcess, daemon, wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path / "node") as process:
        yield process


def configure(node: DaemonProcess, *directories: Path) -> None:
    node.use_directories(*directories, config="segment.bytes: 64KiB\n")


@pytest.mark.root
def test_a_file_system_that_becomes_read_only_goes_alone(
    node: DaemonProcess, tmp_path: Path
) -> None:
    with mounted_disk(tmp_path, "ext4") as disk:
        configure(node, disk.path)
        node.start()
        with closing(Client(node)) as client:
            client.create("a")
            client.append("a", b"kept")
        assert node.stop() == 0
        other = node.folder / "other"
        configure(node, disk.path, other)
        node.start()
        with closing(Client(node)) as client:
            client.create("b")
            assert client.append("b", b"0") == 0
            assert client.append("a", b"too") == 1
            disk.become_read_only()
            with pytest.raises(DlogError):
                client.append("a", b"refused")
            wait_until(lambda: not directories_online(node)[str(disk.path)])
            assert directories_online(node)[str(other)]
            assert client.append("b", b"1") == 1
            assert client.read("b") == [b"0", b"1"]
        assert node.stop() == 0
        disk.remount()
        node.start()
        with closing(Client(node)) as client:
            assert client.read("a")[:2] == [b"kept", b"too"]
            assert client.read("b") == [b"0", b"1"]
        assert node.stop() == 0


def test_segments_in_the_wrong_place_are_refused(node: DaemonProcess) -> None:
    data = node.folder / "data"
    configure(node, data)
    node.start()
    with closing(Client(node)) as client:
        client.create("a")
        for number in range(60):
            client.append("a", b"%03d" % number + b"x" * 4000)
    assert node.stop() == 0
    first, second, *_ = sorted(data.glob("topics/a-0.*/*.log"))
    aside = node.folder / "aside"
    for is_back in (False, True):
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        node.start()
        if is_back:
            with closing(Client(node)) as client:
                assert len(client.read("a")) == 60
        else:
            assert node.status()["partitions"] == {"led": 0, "offline": 1}
            assert "is damaged at position 0 (offset 0)" in node.log
        assert node.stop() == 0


def test_an_older_backup_of_the_metadata_deletes_nothing(node: DaemonProcess) -> None:
    data, meta, backup = (node.folder / name for name in ("data", "meta", "backup"))
    configure(node, data)
    node.start()
    with closing(Client(node)) as client:
        client.create("old")
        client.append("old", b"1")
    assert node.stop() == 0
    shutil.copytree(meta, backup)
    node.start()
    with closing(Client(node)) as client:
        client.create("new")
        client.append("new", b"2")
    assert node.stop() == 0
    newest = node.folder / "newest"
    meta.rename(newest)
    backup.rename(meta)
    node.start()
    with closing(Client(node)) as client:
        assert client.read("old") == [b"1"]
        client.create("new")
        client.append("new", b"another")
    assert node.stop() == 0
    strays = list((data / "stray").iterdir())
    assert len(strays) == 1 and strays[0].name.startswith("new-0.")
    # As docs/operating/recovery.md says: the right metadata, and the log back in its place.
    shutil.rmtree(meta)
    newest.rename(meta)
    strays[0].rename(data / "topics" / strays[0].name)
    node.start()
    with closing(Client(node)) as client:
        assert client.read("new") == [b"2"] and client.read("old") == [b"1"]
    assert node.stop() == 0
