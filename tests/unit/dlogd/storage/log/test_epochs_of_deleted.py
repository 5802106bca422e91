"""A log from which all was deleted goes on with an older history, after two unclean elections.

The epoch of what was deleted is remembered, but binds nobody: neither what is appended next nor,
after a crash, what recovery finds.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dlog.batch.header import patch
from dlog.errors import InvalidRecordError, NotLeaderOrFollowerError
from dlog.types import LeaderEpoch
from dlogd.replication.follower.follower_append import append_as_follower
from dlogd.replication.partition.partition import Partition
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.leader_epochs import FILE_NAME
from dlogd.storage.segment.segment_names import IDX, TDX, file_name
from tests.fakes.damaged_logs import fill
from tests.fakes.filled_logs import CONFIG, offsets
from tests.fakes.front import Front
from tests.fakes.led_partition import append, batch, check
from tests.fakes.logs import LogHost, append_waiting, run_virtual

OLDER, NEWER, NOW = 4, 5, 6


def take(partition: Partition, offset: int, epoch: int) -> None:
    """Append a batch that the leader sent."""
    data = bytearray(batch())
    patch(data, 0, offset, epoch)
    assert append_as_follower(partition, data, 0, len(data), 0) == len(data)


def test_an_empty_replica_follows_an_older_history(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        partition.lead(LeaderEpoch(NEWER))
        for _ in range(5):
            append(partition, batch())
        plog = partition.log
        await plog.flush()
        await plog.trim_to(5)
        assert (plog.log_start_offset, plog.log_end_offset, plog.last_epoch) == (5, 5, NEWER)
        partition.follow(LeaderEpoch(NOW), NotLeaderOrFollowerError("another leads"))
        with pytest.raises(InvalidRecordError):
            take(partition, 5, NOW + 1)  # of nobody who may be followed now
        take(partition, 5, OLDER)
        assert plog.epochs.entries == [(OLDER, 5)] and plog.last_epoch == OLDER
        with pytest.raises(InvalidRecordError):
            take(partition, 6, OLDER - 1)
        take(partition, 6, NOW)
        assert plog.epochs.entries == [(OLDER, 5), (NOW, 6)]

    check(scenario, tmp_path)


async def trimmed_to_its_end(plog: PartitionLog) -> None:
    """All is deleted, and nothing is left of it."""
    await fill(plog, 5, epoch=NEWER)
    await plog.trim_to(5)
    assert plog.last_epoch == NEWER


async def cut_to_its_start(plog: PartitionLog) -> None:
    """A part is deleted, and the rest cut: the segment still has what was deleted."""
    await fill(plog, 8, epoch=NEWER)
    await plog.trim_to(5)
    await plog.truncate_to(5)
    assert plog.active.base_offset == 0


Empty = Callable[[PartitionLog], Awaitable[None]]


@pytest.mark.parametrize("lost", [(), (IDX, TDX), (FILE_NAME,), (IDX, TDX, FILE_NAME)])
@pytest.mark.parametrize("empty", [trimmed_to_its_end, cut_to_its_start])
def test_recovery_of_a_log_that_was_empty(empty: Empty, lost: tuple[str, ...]) -> None:
    """`lost`: files that a crash may leave behind, or rot."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        await empty(plog)
        await append_waiting(plog, b"older", epoch=OLDER)
        await append_waiting(plog, b"new", epoch=NOW)
        await plog.flush()
        base = plog.active.base_offset
        directory = await host.kill()
        for each in lost:
            name = each if each == FILE_NAME else file_name(base, each)
            if directory.exists(name):
                directory.unlink(name)
        plog = await host.open()
        assert await offsets(plog) == [5, 6]
        assert plog.epochs.entries == [(OLDER, 5), (NOW, 6)]

    run_virtual(scenario)
