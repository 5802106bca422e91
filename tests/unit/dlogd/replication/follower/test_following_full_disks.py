"""Followers whose disk or memory takes nothing: what it costs, and when it is tried again."""

from itertools import pairwise
from typing import Any

import pytest

from dlog.errors import KafkaStorageError, RecordTooLargeError
from dlogd.replication.follower import frame_applier, retry_backoff
from dlogd.replication.follower.follower_append import append_as_follower
from dlogd.status.replication_page import ReplicationReport
from tests.fakes.small_fleet import SmallFleet, tell

FULL = KafkaStorageError("less than its reserve")


FOLLOWER, PARTITIONS = 3, 12


class Refusals:
    """Appends of a node to `full`, refused as by the reserve of its directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.bytes = 0
        """What was sent in vain."""
        monkeypatch.setattr(frame_applier, "append_as_follower", self._append)

    def _append(self, partition: Any, buffer: bytearray, start: int, end: int, now_ms: int) -> int:
        if self.is_full and partition.topic_partition.topic == "full":
            partition.log.refusal = FULL
            self.bytes += end - start
        return append_as_follower(partition, buffer, start, end, now_ms)

    async def come_back_full(self, fleet: SmallFleet) -> None:
        """Start the follower again, with a disk that takes nothing of one topic."""
        self.is_full = True
        fleet.host(FOLLOWER).boot()
        await fleet.until(lambda: fleet.is_up(FOLLOWER))


async def miss_much(fleet: SmallFleet) -> None:
    """Let one follower miss more of two topics than memory keeps."""
    for name in ("full", "well"):
        await fleet.admin.create_topic(name, assignments=[(1, 2, FOLLOWER)] * PARTITIONS)
        for index in range(PARTITIONS):
            await fleet.until_in_sync(name, index)
    host = fleet.host(FOLLOWER)
    host.is_held_down = True
    host.crash()
    for name in ("full", "well"):
        for index in range(PARTITIONS):
            await fleet.produce(name, *[bytes(60_000)] * 5, partition=index)
            await fleet.until(lambda: FOLLOWER not in fleet.state(name, index).isr)  # noqa: B023
    host.is_held_down = False


async def until_all_in_sync(fleet: SmallFleet, name: str, seconds: float) -> None:
    """Wait for all partitions of a topic."""

    def is_done() -> bool:
        partitions = fleet.image.topics[name].partitions
        return all(FOLLOWER in each.isr for each in partitions)

    await fleet.until(is_done, seconds)


def test_who_takes_nothing_does_not_starve_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of frames from a disk few may be under way: those in vain have to be told of at once."""
    refusals = Refusals(monkeypatch)

    async def story(fleet: SmallFleet) -> None:
        await miss_much(fleet)
        await refusals.come_back_full(fleet)
        await until_all_in_sync(fleet, "well", seconds=2)

    tell(story)


def test_a_full_disk_is_sent_little_and_goes_on_when_there_is_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not nothing: it has to hear of deletions, which make space."""
    refusals = Refusals(monkeypatch)

    async def story(fleet: SmallFleet) -> None:
        await miss_much(fleet)
        await refusals.come_back_full(fleet)
        await fleet.until(lambda: refusals.bytes)
        await fleet.sleep(30)
        before = refusals.bytes
        await fleet.sleep(120)
        missed = PARTITIONS * 5 * 60_000
        assert 2 * missed < refusals.bytes - before < 6 * missed
        refusals.is_full = False
        for index in range(PARTITIONS):
            fleet.replica(FOLLOWER, "full", index).log.refusal = None
        await until_all_in_sync(fleet, "full", seconds=3)

    tell(story)


def test_what_does_not_fit_into_memory_is_sent_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node with less append memory than the leader; once is said what to do about it."""
    attempts: list[float] = []
    is_small = True

    async def story(fleet: SmallFleet) -> None:
        def append(*place: Any) -> int:
            if is_small:
                attempts.append(fleet.loop.time())
                raise RecordTooLargeError("more than half of append.memory.bytes")
            return append_as_follower(*place)

        def samples() -> dict[str, float]:
            replicating, replicas = fleet.broker(FOLLOWER).replicating, fleet.broker(1).replicas
            assert replicating is not None and replicas is not None
            report = ReplicationReport(replicating, fleet.clock)
            (stuck,) = report.status([])["stuck"] or [None]
            assert stuck is None or (stuck["partition"], stuck["leader"]) == ("t-0", 1)
            return {each.spec.name: each.value for each in report.samples([])}

        monkeypatch.setattr(frame_applier, "append_as_follower", append)
        monkeypatch.setattr(retry_backoff, "TOO_LARGE_REST_S_MAX", 40.0)
        await fleet.admin.create_topic(
            "t", assignments=[(1, FOLLOWER)], configs={"min.insync.replicas": "1"}
        )
        await fleet.until_in_sync("t")
        await fleet.produce("t", b"large")
        await fleet.sleep(150)
        rests = [after - before for before, after in pairwise(attempts)]
        assert rests == pytest.approx([1, 2, 4, 8, 16, 32, 40, 40], rel=0.01)
        assert samples()["dlog_replication_stuck_partitions"] == 1
        nonlocal is_small
        is_small = False
        await fleet.until_in_sync("t", seconds=41)
        assert samples()["dlog_replication_stuck_partitions"] == 0

    tell(story)
    (said,) = [each for each in caplog.records if "append.memory.bytes" in each.getMessage()]
    assert said.levelname == "ERROR"
