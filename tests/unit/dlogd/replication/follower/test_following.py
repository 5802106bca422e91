"""Followers whose connection, log or role changes at the wrong moment."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.batch.header import BATCH_STRUCT
from dlog.errors import NotLeaderOrFollowerError, TransportError
from dlog.types import LeaderEpoch, NodeId
from dlogd.replication import protocol
from dlogd.replication.follower import frame_applier
from dlogd.replication.follower.fetch_services import FetchCounters
from dlogd.replication.follower.followed_partition import NO_HANDLE, FollowedPartition
from dlogd.replication.follower.follower_append import append_as_follower
from dlogd.replication.follower.follower_states import Event
from dlogd.replication.follower.frame_applier import FrameApplier
from dlogd.replication.follower.log_start_sync import LogStartSync
from dlogd.replication.follower.subscriptions import Subscriptions
from dlogd.replication.partition.partition import Partition
from dlogd.replication.protocol import Refusal
from dlogd.replication.rate_limiter import RateLimiter
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.fleet_followers import following_of, on_node
from tests.fakes.front import Front
from tests.fakes.led_partition import batch, check
from tests.fakes.small_fleet import SmallFleet, tell


def test_nobody_leads_or_follows_from_the_moment_that_a_cut_is_decided() -> None:
    """Else a leader's log is cut, or a new leader is told of what is cut a moment later."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b", b"c")
        await fleet.until_in_sync("t")
        node_id = fleet.followers("t")[0]
        fetcher, following = following_of(fleet, node_id, "t")
        partition = following.partition
        refusal = Refusal(following.handle, 0, partition.log.last_epoch, 1, 0, 1)
        frame = bytearray(protocol.encode_refused((refusal,)))

        def refuse() -> tuple[bool, int]:
            fetcher._applier.take(frame, 4, len(frame))
            fetcher.subscribe(following)
            fetcher._send()
            return partition.is_cutting, following.handle

        assert await on_node(fleet, fetcher, refuse) == (True, NO_HANDLE)
        await fleet.until(lambda: fetcher._counters.truncations_total == 1)
        await fleet.until_in_sync("t")
        assert partition.log.log_end_offset == 3

    tell(story)


def test_a_log_that_begins_anew_goes_on_over_the_next_connection() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b", b"c")
        await fleet.until_in_sync("t")
        node_id = fleet.followers("t")[0]
        fetcher, following = following_of(fleet, node_id, "t")
        partition, cutter = following.partition, fetcher._services.cutter
        real = cutter.start_at

        async def slow(*place: Any) -> None:
            fetcher._link.close(TransportError("lost"))
            await asyncio.sleep(1)
            assert fetcher.is_connected
            await real(*place)

        def begin() -> None:
            cutter.start_at = slow
            fetcher._applier._hold = lambda *_: None
            fetcher._applier._begin_log(following, 0, None)

        await on_node(fleet, fetcher, begin)
        await fleet.until(lambda: fetcher._counters.truncations_total == 1)
        await fleet.sleep(2)
        await fleet.until(lambda: partition.log.log_end_offset == 3)
        await fleet.until_in_sync("t")

    tell(story)


def hang(fetcher: Any, following: Any) -> None:
    """Let it give up its turn."""
    fetcher._subscriptions.on(following, Event.HANGS)


def test_a_partition_that_rests_is_subscribed_once_over_the_next_connection() -> None:
    """Twice would be for ever: each time the leader ends the earlier one."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.until_in_sync("t")
        fetcher, following = following_of(fleet, fleet.followers("t")[0], "t")
        refusals = fetcher._counters.refusals_total
        following.rest_s = 2.0
        await on_node(fleet, fetcher, lambda: hang(fetcher, following))
        await on_node(fleet, fetcher, lambda: fetcher._link.close(TransportError("lost")))
        await fleet.sleep(10)
        assert fetcher._counters.refusals_total == refusals
        assert following.handle != NO_HANDLE
        await fleet.produce("t", b"a")
        await fleet.until_in_sync("t")

    tell(story)


def test_a_follower_comes_into_sync_while_its_leader_never_rests() -> None:
    """Its word is always older than the watermark, so the watermark has to wait for it."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", replicas=2, min_insync_replicas="1")
        leader, absent = fleet.leader("t"), fleet.followers("t")[0]
        fleet.host(absent).is_held_down = True
        fleet.host(absent).crash()
        await fleet.until(lambda: absent not in fleet.state("t").isr)
        fleet.host(absent).is_held_down = False
        fleet.host(absent).boot()
        is_over = False

        async def load() -> None:
            while not is_over:
                await fleet.sleep(fleet.rng.random() * 0.02)
                await fleet.produce("t", b"x")

        producers = [asyncio.ensure_future(load()) for _ in range(30)]
        await fleet.until(lambda: fleet.is_up(absent))
        await fleet.until(lambda: absent in fleet.state("t").isr, seconds=6)
        is_over = True
        await asyncio.gather(*producers)
        assert fleet.leader("t") == leader

    tell(story, latency_us=5000)


class Held:
    """A link whose last frame stays where it is."""

    def __init__(self, frame: bytearray) -> None:
        self.frame = frame

    def hold(self) -> tuple[bytearray, int]:
        return self.frame, 4

    def go_on(self) -> None:
        pass


def test_what_is_taken_in_part_is_not_told_to_who_sends_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader would send the rest twice, and the follower would have to begin anew."""
    resumptions: list[Callable[[], None]] = []
    monkeypatch.setattr(PartitionLog, "when_writable", lambda _, work: resumptions.append(work))

    def first_only(*place: Any) -> int:
        monkeypatch.setattr(frame_applier, "append_as_follower", append_as_follower)
        partition, buffer, start, _, now_ms = place
        return append_as_follower(partition, buffer, start, start + size, now_ms)

    two = [bytes(batch(leader_epoch=3)), bytes(batch(leader_epoch=3, base_offset=1))]
    size = len(two[0])
    rows = [(1, 0, 0, 0, 2 * size, protocol.MORE)]
    frame = bytearray(protocol.encode_data(rows, 2 * size) + b"".join(two))

    async def scenario(front: Front, partition: Partition) -> None:
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("another leads"))
        reports: list[Any] = []
        nothing: Any = None
        services: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            clock=front.clock,
            counters=FetchCounters(),
            limiter=RateLimiter(),
            tasks=nothing,
            node_id=NodeId(1),
            is_in_sync=lambda _: False,
        )
        subscriptions = Subscriptions(services, nothing, reports.append)
        mine = FrameApplier(NodeId(2), services, subscriptions, reports.append, lambda *_: None)
        mine.begin(Held(frame))  # type: ignore[arg-type]
        key = (partition.topic_id, 0)
        following = FollowedPartition(key, partition, NodeId(2), LeaderEpoch(3), nothing)
        subscriptions.on(following, Event.ASKED)
        following.handle, subscriptions.by_handle[1] = 1, following
        monkeypatch.setattr(frame_applier, "append_as_follower", first_only)
        assert not mine.take(frame, 4, len(frame))
        await partition.log.flush()
        assert partition.log.promised_offset == 1
        assert following.progress() == (1, 0, 0, 0) and not reports
        resumptions.pop()()
        assert reports == [following]
        assert following.progress() == (1, 1, 2, 0)
        following.rest_s = 1.0
        nothing_new = bytearray(protocol.encode_data([(1, 0, 0, 2, 0, 0)], 0))
        assert mine.take(nothing_new, 4, len(nothing_new))
        assert following.rest_s == 1.0, "what fails again and again is not tried at once again"
        following.said = 2
        assert following.progress() is None, "less than before is not said"

    check(scenario, tmp_path)


def test_who_left_an_idle_partition_comes_back_after_retention() -> None:
    """Both have dropped the same, but nothing is sent any more that would say so."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", *[b"%d" % number for number in range(10)])
        await fleet.until_in_sync("t")
        for node_id in (1, 2, 3):
            broker, plog = fleet.broker(node_id), fleet.replica(node_id, "t").log
            broker._loop.call_soon(broker._tasks.spawn, "trim", plog.trim_to(5))
            await fleet.until(lambda: plog.log_start_offset == 5)  # noqa: B023
        leader, absent = fleet.leader("t"), fleet.followers("t")[0]
        broker, partition = fleet.broker(leader), fleet.replica(leader, "t")
        assert broker.replicating is not None and partition.leader is not None
        isr = tuple(each for each in fleet.state("t").isr if each != absent)
        key = (partition.topic_id, 0)
        change = (key, partition, partition.leader, fleet.state("t"), isr)
        broker._loop.call_soon(broker.replicating.keeper._propose, *change)
        await fleet.until(lambda: absent not in fleet.state("t").isr)
        await fleet.until_in_sync("t", seconds=20)

    tell(story)


def test_whatever_goes_wrong_with_a_connection_it_is_tried_again() -> None:
    """Looking a strange host name up raises what is no network's error."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        fetcher, _ = following_of(fleet, fleet.followers("t")[0], "t")
        real = fetcher._loop.create_connection

        async def strange(*place: Any) -> Any:
            fetcher._loop.create_connection = real
            raise UnicodeError("label empty or too long")

        fetcher._loop.create_connection = strange
        await on_node(fleet, fetcher, lambda: fetcher._link.close(TransportError("lost")))
        await fleet.sleep(5)
        assert fetcher._loop.create_connection == real and fetcher.is_connected
        await fleet.produce("t", b"a")
        await fleet.until_in_sync("t", seconds=5)

    tell(story)


def test_who_parts_from_its_leader_below_its_own_beginning_begins_where_the_leader_does() -> None:
    """After an unclean election: what it dropped by itself, its leader may have anew."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", *[b"%d" % number for number in range(10)])
        await fleet.until_in_sync("t")
        node_id = fleet.followers("t")[0]
        fetcher, following = following_of(fleet, node_id, "t")
        plog = following.partition.log
        broker = fleet.broker(node_id)
        broker._loop.call_soon(broker._tasks.spawn, "trim", plog.trim_to(5))
        await fleet.until(lambda: plog.log_start_offset == 5)
        frame = bytearray(protocol.encode_refused((Refusal(following.handle, 0, 0, 2, 0, 10),)))
        await on_node(fleet, fetcher, lambda: fetcher._applier.take(frame, 4, len(frame)))
        await fleet.until(lambda: plog.log_start_offset == 0)
        await fleet.until_in_sync("t")

    tell(story)


def test_a_leader_of_an_earlier_version_without_an_epoch_cuts_nobody_below_its_end() -> None:
    """Its log begins where all was deleted; it says that it has nothing of what is here."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", *[b"%d" % number for number in range(10)])
        await fleet.until_in_sync("t")
        fetcher, following = following_of(fleet, fleet.followers("t")[0], "t")
        plog = following.partition.log
        ends: list[int] = []
        cutter = fetcher._services.cutter
        real = cutter.truncate_to

        async def truncate(partition: Any, offset: Any) -> None:
            await real(partition, offset)
            ends.append(plog.log_end_offset)

        cutter.truncate_to = truncate
        frame = bytearray(protocol.encode_refused((Refusal(following.handle, 0, -1, 7, 7, 7),)))
        await on_node(fleet, fetcher, lambda: fetcher._applier.take(frame, 4, len(frame)))
        await fleet.until(lambda: ends)
        assert ends == [7]
        await fleet.until_in_sync("t")

    tell(story)


def test_a_log_does_not_begin_behind_the_watermark_while_a_frame_is_held(tmp_path: Path) -> None:
    """The leader's may begin behind what is taken of the frame so far."""

    async def scenario(front: Front, partition: Partition) -> None:
        plog, data = partition.log, batch()
        partition.append_as_leader(data, 0, len(data), 1)
        await plog.flush()
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("another leads"))
        fetcher: Any = SimpleNamespace(report=print)
        following = FollowedPartition(
            (plog.topic_id, 0), partition, NodeId(2), LeaderEpoch(3), fetcher
        )
        following.leader_start = 2  # as its first row said, and a watermark not below it
        plog.append(memoryview(data), BATCH_STRUCT.unpack_from(data), leader_epoch=LeaderEpoch(3))
        unused: Any = None
        trimming = LogStartSync(unused, print, unused)
        await trimming._trim(following)
        assert (plog.log_start_offset, partition.high_watermark) == (1, 1)
        partition.on_leader_watermark(2)
        await trimming._trim(following)
        assert (plog.log_start_offset, partition.high_watermark) == (2, 2)

    check(scenario, tmp_path)


def test_a_connection_that_breaks_after_its_first_frame_is_made_less_and_less_often() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a")
        await fleet.until_in_sync("t")
        fetcher, _ = following_of(fleet, fleet.followers("t")[0], "t")
        fetcher._applier = BreakingApplier(fetcher, fetcher._applier)
        counters = fetcher._counters

        def kill() -> None:
            fetcher._link.close(TransportError("broken"))

        await on_node(fleet, fetcher, kill)
        before = counters.connects_total
        began_s = fleet.clock.now_ms() / 1000
        await fleet.until(lambda: counters.connects_total >= before + 8)
        # 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1 + 1 s, of each half at least
        assert fleet.clock.now_ms() / 1000 - began_s > 1.7
        fetcher._applier.is_breaking = False
        await fleet.produce("t", b"b")
        await fleet.until_in_sync("t")

    tell(story)


class BreakingApplier:
    """Ends the connection whenever a frame has come over it, while `is_breaking`."""

    def __init__(self, fetcher: Any, real: Any) -> None:
        self.fetcher = fetcher
        self.real = real
        self.is_breaking = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def take(self, *frame: Any) -> bool:
        link = self.fetcher._link
        if self.is_breaking and link is not None:
            self.fetcher._loop.call_soon(link.close, TransportError("broken"))
        return bool(self.real.take(*frame))
