"""Snapshots of producers that cannot be used: the log tells what they told."""

import asyncio
from pathlib import Path

import pytest

from dlogd.replication.partition import producer_snapshots
from dlogd.replication.partition.producer_snapshots import SNAPSHOT
from tests.fakes.replica_host import Host, append


@pytest.mark.parametrize("harm", ["large", "garbage", "empty"])
def test_a_snapshot_that_cannot_be_read_does_not_keep_a_node_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        host.create("t")
        async with host.running() as manager:
            fields = {"producer_epoch": 0, "base_sequence": 0}
            for producer_id in range(5):
                await append(manager.partition("t", 0), b"x", **fields, producer_id=producer_id)
        (snapshot,) = tmp_path.rglob(SNAPSHOT)
        if harm == "large":
            monkeypatch.setattr(producer_snapshots, "SIZE_MAX", snapshot.stat().st_size - 1)
        else:
            snapshot.write_bytes(b"?" * 99 if harm == "garbage" else b"")
        async with host.running() as manager:
            assert not manager.failures
            assert len(manager.partition("t", 0).producers) == 5

    asyncio.run(scenario())


def test_producers_that_rot_makes_forgotten_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        host.create("t")
        ends = []
        async with host.running() as manager:
            partition = manager.partition("t", 0)
            for producer_id in range(5):
                fields = {"producer_epoch": 0, "base_sequence": 0, "producer_id": producer_id}
                await append(partition, b"x" * 5000, **fields)
                ends.append(partition.log.active.written_position)
        (snapshot,) = tmp_path.rglob(SNAPSHOT)
        snapshot.unlink()
        (segment,) = tmp_path.rglob("*.log")
        with segment.open("r+b") as file:
            file.seek(ends[1])
            file.write(b"\xee" * 30)
        async with host.running() as manager:
            assert len(manager.partition("t", 0).producers) == 0

    asyncio.run(scenario())
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told.startswith("Lost producer state because batches cannot be read;")
    assert told.endswith("offset=2 end_offset=5")
