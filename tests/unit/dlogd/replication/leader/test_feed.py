"""Which partitions go into the frames of a replication stream, and at what cost."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import (
    CorruptMessageError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    ProtocolError,
)
from dlog.types import NodeId
from dlogd.net.disk_reader import HeldReads
from dlogd.net.frame_memory import FrameMemory
from dlogd.net.reply_queue import ReplyQueue
from dlogd.net.reply_slot import Piece, RangePiece
from dlogd.replication import protocol
from dlogd.replication.leader.follower_partition import FollowerPartition, Taken
from dlogd.replication.leader.follower_session import FRAME_BYTES, FollowerSession
from dlogd.replication.leader.send_window import (
    DISK_FRAMES_MAX,
    FRAMES_MAX,
    WINDOW_BYTES,
    SendWindow,
)
from dlogd.replication.partition.leader_state import FollowerProgress
from dlogd.storage.segment.segment import SegmentRange


class Source:
    """A partition with batches of one size, for ever."""

    def __init__(
        self, handle: int, batch_bytes: int, *, is_disk: bool, disk: str = "/data"
    ) -> None:
        self.handle = handle
        self.batch_bytes = batch_bytes
        self.is_disk = is_disk
        self.disk = disk
        self.is_marked = self.is_resting = False
        self.taken = self.looks = 0
        self.answers = asyncio.Event()
        self.answers.set()

    @property
    def has_more(self) -> bool:
        return not self.is_resting

    def take(self, bytes_max: int, *, is_first: bool) -> Taken:
        self.looks += 1
        fits = is_first or self.batch_bytes <= bytes_max
        self.taken += fits
        size = self.batch_bytes if fits else 0
        return Taken(0, size, [], self.is_disk and fits, (0, False, None))

    async def load(self, taken: Taken) -> list[Piece]:
        await self.answers.wait()
        self.is_resting = False
        return [memoryview(b"")]

    def put_back(self, taken: Taken) -> None:
        self.taken -= 1

    def leave(self) -> None:
        pass

    def row(self, taken: Taken) -> protocol.DataRow:
        return self.handle, 0, 0, 0, taken.bytes, 0


class Owner:
    """What a feed needs of the node."""

    def __init__(self) -> None:
        self.engine = self.clock = self.tasks = self
        self.reads: list[Any] = []
        self.frames = FrameMemory(1 << 20)
        self.receive = bytearray(1024)
        self.held: Any = None

    def defer(self, work: Any) -> None:
        pass

    def spawn(self, name: str, work: Any) -> None:
        self.reads.append(work)

    def now_ms(self) -> int:
        return 0

    def wait_us(self, fed: Any, size: int) -> int:
        return 0


def feed_of(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    monkeypatch.setattr("dlogd.replication.leader.follower_session.ReplyQueue", lambda *_: None)
    feed: Any = FollowerSession(Owner(), asyncio.new_event_loop(), NodeId(2), 1, "peer")  # type: ignore[arg-type]
    feed.tasks = []
    sent: list[int] = []
    feed._transport = feed
    feed._send = lambda pieces: sent.append(len(pieces))
    for each in sources:
        feed._fed[each.handle] = each
        feed.mark(each)
    return feed, sent


def go_on(feed: Any) -> None:
    """Let frames be sent and read until nothing happens any more."""

    async def work() -> None:
        feed._run()
        while feed._owner.reads:
            feed.tasks += [asyncio.ensure_future(each) for each in feed._owner.reads]
            feed._owner.reads.clear()
            await asyncio.sleep(0)
            feed._run()

    feed._loop.run_until_complete(work())


def test_a_frame_from_a_disk_does_not_cost_a_look_at_all_that_are_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = [Source(number, FRAME_BYTES, is_disk=True) for number in range(1000)]
    feed, sent = feed_of(sources, monkeypatch)
    go_on(feed)
    assert len(sent) == DISK_FRAMES_MAX
    looks = sum(each.looks for each in sources)
    for taken in range(1, 101):
        frame = protocol.encode_progress(taken, [(9999, 0, 0, 0)])
        feed._take(memoryview(frame), 4, len(frame))
        go_on(feed)
    assert len(sent) == DISK_FRAMES_MAX + 100
    assert sum(each.looks for each in sources) - looks <= 300
    assert max(each.taken for each in sources) <= 2, "each has its turn"


def test_what_is_read_takes_its_place_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [Source(number, FRAME_BYTES, is_disk=True, disk="/bad") for number in range(3)]
    others = [Source(10 + number, FRAME_BYTES, is_disk=True, disk="/good") for number in range(3)]
    for each in hanging:
        each.answers.clear()
    feed, sent = feed_of([*hanging, *others], monkeypatch)
    go_on(feed)
    assert len(sent) == DISK_FRAMES_MAX
    for taken in range(1, 10):
        frame = protocol.encode_progress(taken, [(9999, 0, 0, 0)])
        feed._take(memoryview(frame), 4, len(frame))
        go_on(feed)
        assert len(sent) == DISK_FRAMES_MAX + taken
    assert sum(each.taken for each in hanging) == 1, "one read, and nothing behind it"
    assert [each.taken for each in others] == [4, 4, 3], "each has its turn"
    hanging[0].answers.set()
    feed._loop.run_until_complete(asyncio.sleep(0))
    assert len(sent) == DISK_FRAMES_MAX + 10


def test_what_was_read_for_who_has_gone_meanwhile_leaves_no_segment_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its file is kept, deleted or not, as long as the node runs."""
    held: list[str] = []
    segment: Any = SimpleNamespace(cut_count=0, release=held.pop)
    source: Any = Source(1, FRAME_BYTES, is_disk=True)
    source.answers.clear()

    async def load(taken: Taken) -> list[Piece]:
        await source.answers.wait()
        held.append("x")
        return [memoryview(b""), RangePiece(segment, 0, 10)]

    source.load = load
    feed, sent = feed_of([source], monkeypatch)
    go_on(feed)
    del feed._fed[1]
    source.answers.set()
    feed._loop.run_until_complete(asyncio.gather(*feed.tasks))
    assert (len(feed.tasks), held, sent) == (1, [], [])


def test_a_large_batch_has_its_turn_beside_a_partition_that_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = [Source(1, 300 << 10, is_disk=False), Source(2, 400 << 10, is_disk=False)]
    feed, sent = feed_of(sources, monkeypatch)
    feed._run()
    assert len(sent) > 10
    assert min(each.taken for each in sources) > 10


def test_what_is_under_way_is_bounded_in_bytes_and_frames() -> None:
    window = SendWindow()
    window.on_sent(WINDOW_BYTES - 1, is_disk=True)
    assert window.is_open and window.may_read
    window.on_sent(1, is_disk=True)
    assert not window.is_open and not window.may_read
    for nonsense in (-1, 3):
        with pytest.raises(ProtocolError):
            window.on_taken(nonsense)
    window.on_taken(2)
    assert window.is_open and window.may_read
    for _ in range(FRAMES_MAX):
        assert window.is_open
        window.on_sent(0, is_disk=False)
    assert not window.is_open


@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_partition_that_ends_takes_others_with_it_only_when_its_bytes_are_under_way(
    is_under_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, sent = feed_of([], monkeypatch)
    mine, other = SimpleNamespace(acquire=print, cut_count=0), SimpleNamespace(cut_count=0)
    replies: Any = ReplyQueue(feed._owner, feed._owner.held, print, print)  # type: ignore[arg-type]
    feed._replies = replies
    replies._out.append(RangePiece(mine if is_under_way else other, 0, 10))
    fed: Any = Source(1, 1, is_disk=False)
    fed.partition = SimpleNamespace(log=SimpleNamespace(segments=[mine]))
    feed._fed[1] = fed
    aborted: list[str] = []
    feed.abort = aborted.append
    feed.refuse(fed, NotLeaderOrFollowerError("another leads"))
    feed._loop.run_until_complete(asyncio.sleep(0))
    assert (bool(aborted), bool(sent)) == (is_under_way, not is_under_way)


def test_who_is_refused_for_what_cannot_be_read_is_not_told_of_what_comes_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is marked and has no handle any more would be looked at for ever, and nothing else."""
    feed, sent = feed_of([], monkeypatch)
    feed._replies = SimpleNamespace(is_sending_of=lambda _: False, close=print)
    looks: list[int] = []

    def read(offset: int, *_: Any, **__: Any) -> None:
        looks.append(offset)
        assert len(looks) < 10, "it never ends"
        raise CorruptMessageError("no batch there")

    disk = SimpleNamespace(engine="/data")
    log = SimpleNamespace(log_end_offset=20, log_start_offset=0, read=read, services=disk)
    log.segments = []
    subscribers: list[FollowerPartition] = []
    partition: Any = SimpleNamespace(log=log, high_watermark=0, unsubscribe=subscribers.remove)
    progress = FollowerProgress(NodeId(2), 0)
    progress.begin(node_epoch=1)
    fed = feed._fed[1] = FollowerPartition(feed, (UUID(int=1), 0), 1, partition, progress, 5)
    subscribers.append(fed)
    feed.mark(fed)
    feed._run()
    assert (looks, len(sent), feed._fed) == ([5], 1, {})
    for each in subscribers:
        each.on_append()
    feed._run()
    assert (looks, len(sent), subscribers, progress.node_epoch) == ([5], 1, [], -1)


def test_who_ends_by_what_it_says_itself_is_not_marked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its word moves the watermark, the log fails at that: the node stood still (seed 215215)."""
    feed, sent = feed_of([], monkeypatch)
    feed._replies = SimpleNamespace(is_sending_of=lambda _: False)
    fed: Any = Source(1, 100, is_disk=False)
    fed.partition = SimpleNamespace(log=SimpleNamespace(segments=[]))
    fed.on_progress = lambda *_: None
    feed._fed[1] = fed
    feed._owner.on_progress = lambda each: feed.refuse(each, KafkaStorageError("its disk fails"))

    def take(bytes_max: int, *, is_first: bool) -> Taken:
        fed.looks += 1
        assert fed.looks < 10, "it never ends"
        raise KafkaStorageError("its disk has failed")

    fed.take = take
    frame = protocol.encode_progress(0, [(1, 0, 0, 0)])
    feed._take(memoryview(frame), 4, len(frame))
    feed._run()
    assert (fed.looks, len(sent), feed._fed, feed._marked) == (0, 1, {}, {})


def test_a_follower_that_is_lost_while_a_frame_is_made_leaves_no_segment_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot be told that the second partition is refused: the third is not looked for then."""
    held: list[str] = []
    segment: Any = SimpleNamespace(acquire=lambda: held.append("x"), release=held.pop, cut_count=0)
    sources: list[Any] = [Source(number, 100, is_disk=False) for number in range(3)]

    def take(bytes_max: int, *, is_first: bool) -> Taken:
        return Taken(0, 100, [SegmentRange(segment, 0, 100, 100)], False, (0, False, None))

    def refuse(bytes_max: int, *, is_first: bool) -> Taken:
        raise CorruptMessageError("no batch there")

    sources[0].take, sources[1].take = take, refuse
    sources[1].partition = SimpleNamespace(log=SimpleNamespace(segments=[]))
    feed, _ = feed_of(sources, monkeypatch)
    replies = feed._replies = ReplyQueue(feed._owner, HeldReads(1), feed._on_send_error, print)
    feed._transport = SimpleNamespace(abort=print)
    feed._owner.on_close = print
    del feed._send

    def send(buffers: object) -> int:
        raise BrokenPipeError

    replies.attach(SimpleNamespace(send=send, close=print))
    errors: list[object] = []
    monkeypatch.setattr("dlogd.replication.leader.follower_session.log.exception", errors.append)
    feed._run()
    assert (replies.is_closed, held, errors) == (True, [], [])
