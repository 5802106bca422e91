"""Followers with a full disk follow their leader's log start: that is what makes space."""

import errno
import random
from contextlib import suppress

import pytest

from dlog.client.cluster.partition_calls import delete_records
from dlog.errors import RequestTimedOutError
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.device import Disk
from tests.fakes.small_fleet import SmallFleet, tell

FOLLOWER, PARTITIONS, RECORD = 3, 12, bytes(60_000)
SMALL_SEGMENTS = {"segment.bytes": "70000"}


class Quota:
    """A disk whose topics may take so much; what else is on it has space."""

    errno, writes_part = errno.ENOSPC, False

    def __init__(self, disk: Disk, more_bytes: int) -> None:
        self._disk = disk
        self._bytes_max = self._topic_bytes + more_bytes
        self.count = 0
        """What was refused."""

    @property
    def _topic_bytes(self) -> int:
        files = self._disk.root.files()
        return sum(inode.allocated for path, inode in files if "/topics/" in path)

    def strikes(self, operation: str, path: str, _: random.Random) -> bool:
        """Refuse what is written to a segment."""
        is_write = operation == "write" and "/topics/" in path and path.endswith(".log")
        if not is_write or self._topic_bytes <= self._bytes_max:
            return False
        self.count += 1
        return True


def fill(fleet: SmallFleet, more_bytes: int) -> Quota:
    """Leave so much space to a follower."""
    disk = fleet.host(FOLLOWER).machine.disks["/data0"]
    quota = Quota(disk, more_bytes)
    disk.faults.append(quota)  # type: ignore[arg-type]
    return quota


async def delete(fleet: SmallFleet, topic: str, offset: int, index: int = 0) -> None:
    """Delete records; who does not follow, and is waited for, does not matter."""
    node = await fleet.cluster.leader(topic, index)
    with suppress(RequestTimedOutError):
        await delete_records(node, topic, {index: offset}, timeout_ms=500)


async def fill_at_the_seventh(fleet: SmallFleet, configs: dict[str, str]) -> PartitionLog:
    """Return the log of a follower that has flushed six records, and cannot write the next."""
    await fleet.admin.create_topic("t", assignments=[(1, 2, FOLLOWER)], configs=configs)
    await fleet.until_in_sync("t")
    await fleet.produce("t", *[RECORD] * 6)
    await fleet.until_in_sync("t")
    fill(fleet, -1)
    with suppress(RequestTimedOutError):
        await fleet.produce("t", RECORD)
    await fleet.until(lambda: FOLLOWER not in fleet.state("t").isr)
    plog = fleet.replica(FOLLOWER, "t").log
    assert (plog.flushed_offset, plog.log_end_offset) == (6, 7) and plog.blocked
    return plog


@pytest.mark.parametrize("configs", [SMALL_SEGMENTS, {}], ids=["segments", "one segment"])
def test_what_was_deleted_does_not_wait_for_what_cannot_be_written(configs: dict[str, str]) -> None:
    """All may be in the active segment, which ends in memory: then the log begins anew."""

    async def story(fleet: SmallFleet) -> None:
        plog = await fill_at_the_seventh(fleet, configs)
        await delete(fleet, "t", 7)
        await fleet.until_in_sync("t", seconds=8)
        assert plog.log_start_offset == 7
        await fleet.produce("t", b"more")
        await fleet.until_in_sync("t", seconds=1)

    tell(story)


def test_a_log_begins_anew_only_where_trimming_makes_no_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is to be written yet is written then, and nothing is sent twice."""

    async def story(fleet: SmallFleet) -> None:
        await fill_at_the_seventh(fleet, SMALL_SEGMENTS)
        await delete(fleet, "t", 7)
        await fleet.until_in_sync("t", seconds=8)

    with caplog.at_level("WARNING"):
        tell(story)
    assert not [
        each
        for each in caplog.messages
        if each.startswith("Restarted log from the leader's log start")
    ]


def test_a_log_start_is_heard_beside_records_that_cannot_be_taken() -> None:
    """The leader says it once, with them: who refuses them has to hear it all the same."""

    async def story(fleet: SmallFleet) -> None:
        plog = await fill_at_the_seventh(fleet, SMALL_SEGMENTS)
        await fleet.produce("t", b"a", b"b", b"c")
        await fleet.sleep(2)
        assert plog.log_end_offset == 7
        await delete(fleet, "t", 4)
        await fleet.until(lambda: plog.log_start_offset == 4, seconds=40)
        await fleet.until_in_sync("t")

    tell(story)


async def fill_memory(fleet: SmallFleet) -> None:
    """Let a follower miss more than fits onto its disk and into its memory: it is full of both."""
    await fleet.admin.create_topic(
        "old", assignments=[(1, 2, FOLLOWER)], configs={"segment.bytes": "130000"}
    )
    await fleet.until_in_sync("old")
    await fleet.produce("old", *[RECORD] * 4)
    await fleet.until_in_sync("old")
    await fleet.admin.create_topic("t", assignments=[(1, 2, FOLLOWER)] * PARTITIONS)
    for index in range(PARTITIONS):
        await fleet.until_in_sync("t", index)
    host = fleet.host(FOLLOWER)
    host.is_held_down = True
    host.crash()
    for index in range(PARTITIONS):
        await fleet.produce("t", *[RECORD] * 8, partition=index)
    await fleet.produce("old", *[RECORD] * 20)
    await fleet.until(lambda: FOLLOWER not in fleet.state("old").isr)
    quota = fill(fleet, 300_000)
    host.is_held_down = False
    host.boot()
    await fleet.until(lambda: fleet.is_up(FOLLOWER))
    await fleet.sleep(8)
    assert quota.count
    memory = fleet.replica(FOLLOWER, "t").log.services.memory
    assert memory.pool.usage().waiting, "it is full as well"


def test_what_fills_the_memory_does_not_keep_a_leader_from_being_heard() -> None:
    """With one directory, too: of what nobody can write, only deletions make an end."""

    async def story(fleet: SmallFleet) -> None:
        await fill_memory(fleet)
        for index in range(PARTITIONS):
            await delete(fleet, "t", -1, index)
        await fleet.until(
            lambda: all(FOLLOWER in each.isr for each in fleet.image.topics["t"].partitions), 40
        )

    tell(story)


def test_who_has_no_memory_because_of_others_hears_of_deletions() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fill_memory(fleet)
        plog = fleet.replica(FOLLOWER, "old").log
        assert plog.log_start_offset == 0 and plog.log_end_offset < 24
        await delete(fleet, "old", 3)
        await fleet.until(lambda: plog.log_start_offset == 3, 40)

    tell(story)
