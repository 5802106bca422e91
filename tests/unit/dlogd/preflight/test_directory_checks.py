"""Data directories before a start: whose they are, on which disk, and whether they can be used."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from dlog.types import NodeId
from dlogd.config.choices import DirectIo
from dlogd.config.schema import build
from dlogd.config.units import DiskReserve, NodeAt, parse_address
from dlogd.metadata.raft import snapshots
from dlogd.metadata.raft.snapshots import Snapshot
from dlogd.metadata.raft.voters import Voters
from dlogd.metadata.state.image import EMPTY_IMAGE
from dlogd.metadata.state.limits import LEVEL_NEWEST
from dlogd.preflight import directory_checks
from dlogd.preflight.directory_checks import survey
from dlogd.preflight.findings import Weight
from dlogd.storage.directory.data_directory import LOCK
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import Identity
from dlogd.storage.io.posix import PosixDirectory

Told = list[tuple[Weight, str]]


def belongs(path: Path, node_id: int = 1, cluster_id: str = "c1") -> Path:
    """Make a data directory of a node."""
    path.mkdir()
    made = Identity(cluster_id=cluster_id, node_id=NodeId(node_id), directory_id=uuid4())
    data = checkpoint_files.encode_identity(made)
    checkpoint_files.replace_file(PosixDirectory(str(path)), checkpoint_files.IDENTITY, data)
    return path


def told(paths: Sequence[Path], **values: Any) -> Told:
    """Return what is said of these directories, but for what the disk of this machine is."""
    named = {key.replace("__", "."): value for key, value in values.items()}
    config = build({"data.directories": tuple(map(str, paths)), **named})
    return [
        (each.weight, each.text)
        for each in survey(config).findings
        if "direct I/O" not in each.text or "direct_io" in values
    ]


def test_an_own_directory_is_fine(tmp_path: Path) -> None:
    path = belongs(tmp_path / "1")
    for name in ("a-0.x", "a-1.x"):
        (path / "topics" / name).mkdir(parents=True)
    found = survey(build({"data.directories": (str(path),), "cluster.id": "c1"}))
    assert (found.log_count, found.process) == (2, None)
    assert told([path]) == []
    assert sorted(each.name for each in path.iterdir()) == ["identity", "topics"]


def test_the_first_start_makes_a_missing_one(tmp_path: Path) -> None:
    ((weight, text),) = told([tmp_path / "a" / "b"])
    assert weight is Weight.NOTE and "the first start makes it" in text
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_checks.os, "access", lambda *_: False)
    ((weight, text),) = told([tmp_path / "a"])
    assert weight is Weight.NEVER and f"install -d -o dlog -g dlog -m 0750 {tmp_path}/a" in text


@pytest.mark.parametrize("is_mount", [False, True])
def test_one_of_another_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mount: bool
) -> None:
    monkeypatch.setattr(directory_checks.os, "access", lambda *_: False)
    monkeypatch.setattr(directory_checks.os.path, "ismount", lambda _: is_mount)
    ((weight, text),) = told([belongs(tmp_path / "1")])
    assert weight is Weight.NEVER and ("mount its disk, or chown" in text) is not is_mount
    assert "may not be written by this user" in text


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    ((weight, text),) = told([tmp_path / "1"])
    assert weight is Weight.NEVER and "is no directory" in text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"node__id": 2}, "belongs to node 1, this is node 2"),
        ({"cluster__id": "c2"}, "belongs to cluster c1, cluster.id says c2"),
    ],
)
def test_one_of_another_node_or_cluster_is_told(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    ((weight, text),) = told([belongs(tmp_path / "1")], **values)
    assert weight is Weight.NEVER and words in text


def test_directories_of_two_clusters_are_told(tmp_path: Path) -> None:
    paths = [belongs(tmp_path / "1"), belongs(tmp_path / "2", cluster_id="c2")]
    words = f"{paths[1]} belongs to cluster c2, {paths[0]} says c1"
    assert any(weight is Weight.NEVER and words in text for weight, text in told(paths))


def test_logs_without_an_identity_are_told(tmp_path: Path) -> None:
    (tmp_path / "topics" / "t-0.id").mkdir(parents=True)
    assert any(
        weight is Weight.NEVER and "holds logs but no identity file" in text
        for weight, text in told([tmp_path])
    )


def test_a_damaged_identity_is_told(tmp_path: Path) -> None:
    (belongs(tmp_path / "1") / "identity").write_bytes(b"x")
    ((weight, text),) = told([tmp_path / "1"])
    assert weight is Weight.NEVER and "identity is damaged" in text


def test_a_missing_mount_is_told(tmp_path: Path) -> None:
    """The directory below a mount point is empty, and on the disk of another directory."""
    (tmp_path / "2").mkdir()
    ((weight, text),) = told([belongs(tmp_path / "1"), tmp_path / "2"])
    assert weight is Weight.NEVER and "2 has no data of this node" in text
    assert "mount its disk" in text


def test_two_on_one_disk_are_noted(tmp_path: Path) -> None:
    ((weight, text),) = told([belongs(tmp_path / "1"), belongs(tmp_path / "2")])
    assert weight is Weight.NOTE and "lie on one disk" in text


def test_little_room_is_noted(tmp_path: Path) -> None:
    ((weight, text),) = told([belongs(tmp_path / "1")], disk__reserve__bytes=DiskReserve(1 << 60))
    assert weight is Weight.NOTE and "MiB free, below disk.reserve.bytes (1048576TiB)" in text


@pytest.mark.parametrize(
    ("choice", "weights"),
    [(DirectIo.ON, [Weight.NEVER]), (DirectIo.AUTO, [Weight.NOTE]), (DirectIo.OFF, [])],
)
def test_a_file_system_without_direct_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: DirectIo, weights: list[Weight]
) -> None:
    path = belongs(tmp_path / "1")
    real = os.open

    def refuse(name: str, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(name, flags, *rest)

    monkeypatch.setattr(directory_checks.os, "open", refuse)
    assert [weight for weight, _ in told([path], direct_io=choice)] == weights
    assert [each.name for each in path.iterdir()] == ["identity"]


def test_a_read_only_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = belongs(tmp_path / "1")
    real = os.statvfs
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(directory_checks.os, "statvfs", lambda _: read_only)
    monkeypatch.setattr(PosixDirectory, "usage", lambda _: SimpleNamespace(
        total_bytes=real(path).f_blocks, free_bytes=real(path).f_blocks))  # fmt: skip
    assert [text for weight, text in told([path]) if weight is Weight.NEVER] == [
        f"data.directories: {path} is mounted read-only: look at the disk, remount it"
    ]


def test_the_daemon_that_holds_the_lock_is_found(tmp_path: Path) -> None:
    path = belongs(tmp_path / "1")
    lock = PosixDirectory(str(path)).lock(LOCK)
    config = build({"data.directories": (str(path),)})
    assert survey(config).process == os.getpid()
    lock.release()
    assert survey(config).process is None


def _with_snapshot(path: Path, level: int) -> Path:
    (path / "meta").mkdir()
    image = replace(EMPTY_IMAGE, feature_level=level)
    taken = Snapshot(index=3, term=1, voters=Voters(), image=image)
    (path / "meta" / f"raft-{3:020}.snapshot").write_bytes(snapshots.encode(taken))
    return path


def test_metadata_of_a_newer_software_are_told(tmp_path: Path) -> None:
    known = _with_snapshot(belongs(tmp_path / "1"), LEVEL_NEWEST)
    assert told([known]) == []
    newer = _with_snapshot(belongs(tmp_path / "2"), LEVEL_NEWEST + 1)
    ((weight, text),) = told([newer])
    assert weight is Weight.NEVER and "install the newer software again" in text


def test_metadata_of_a_cluster_need_its_controllers(tmp_path: Path) -> None:
    path = _with_snapshot(belongs(tmp_path / "1"), 1)
    (path / "meta" / "raft.log").touch()
    ((weight, text),) = told([path])
    assert weight is Weight.NEVER and "set `controllers` as on the other nodes" in text
    voters = (NodeAt(1, parse_address("127.0.0.1:9393")),)
    assert told([path], controllers=voters) == []
