"""Who is let in as a follower, and where each may begin: the comparison of two histories."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import ProtocolError
from dlog.types import LeaderEpoch, NodeId, Offset
from dlog.wire.frame import parse_request_header
from dlogd.internal import messages
from dlogd.internal.messages import Replicate
from dlogd.net.frame_memory import FrameMemory
from dlogd.replication.follower.divergence import divergence
from dlogd.replication.leader.divergence_check import difference
from dlogd.replication.leader.follower_session import FollowerSession
from dlogd.replication.leader.follower_sessions import FollowerSessions
from dlogd.replication.partition.leader_state import FollowerProgress
from dlogd.replication.protocol import Refusal, Subscription
from dlogd.storage.segment.leader_epochs import EpochHistory

OUT_OF_RANGE = 1
SAME = 0
ANEW = -1


def feeds_of(node_id: int = 1, **nodes: int) -> FollowerSessions:
    """Return the feeds of a node that knows of some others: `n2=7` is node 2 in its life 7."""
    made: Any = FollowerSessions.__new__(FollowerSessions)
    made.__dict__.update(
        {
            "_node_id": node_id,
            "feeds": {},
            "image": SimpleNamespace(
                topics_by_id={},
                nodes={
                    NodeId(int(name[1:])): SimpleNamespace(node_epoch=epoch)
                    for name, epoch in nodes.items()
                },
            ),
            "receive": bytearray(64),
            "frames": FrameMemory(1 << 20),
            "engine": None,
            "held": None,
            "_loop": SimpleNamespace(time=lambda: 0.0),
            "_ended_bytes_total": 0,
        }
    )
    found: FollowerSessions = made
    return found


def ask(
    feeds: FollowerSessions, node_id: int, node_epoch: int, leader_id: int = 1
) -> tuple[int, FollowerSession | None]:
    request = Replicate(
        cluster_id="c",
        node_id=NodeId(node_id),
        node_epoch=node_epoch,
        leader_id=NodeId(leader_id),
    )
    payload = memoryview(messages.encode_replicate(request, 5))[4:]
    header = parse_request_header(payload, 0, len(payload))
    answer, feed = feeds.adopt(header, payload, "peer")
    assert feed is None or isinstance(feed, FollowerSession)
    return messages.decode_replicate_answer(memoryview(answer)[4:]), feed


def test_a_follower_of_another_leader_is_turned_away() -> None:
    assert ask(feeds_of(n2=7), 2, 7, leader_id=3) == (messages.NOT_LEADER_OR_FOLLOWER, None)


def test_an_earlier_life_is_turned_away_as_the_image_says() -> None:
    feeds = feeds_of(n2=7)
    assert ask(feeds, 2, 6) == (messages.STALE_BROKER_EPOCH, None)
    for epoch in (7, 8):  # the image may be older than the node
        code, feed = ask(feeds, 2, epoch)
        assert code == messages.NONE and feed is not None


def test_an_earlier_life_does_not_end_the_stream_of_a_later_one() -> None:
    """The request of a node that was killed may arrive after those of its next life."""
    feeds = feeds_of(n2=7)
    _, later = ask(feeds, 2, 9)
    assert ask(feeds, 2, 8) == (messages.STALE_BROKER_EPOCH, None)
    assert list(feeds.feeds) == [later]


def test_a_node_whose_image_is_not_here_yet_is_let_in() -> None:
    code, feed = ask(feeds_of(), 4, 1)
    assert code == messages.NONE and feed is not None


class Log:
    """Epochs and ends of a log: `Log((1, 0), (3, 10), end=20)`."""

    def __init__(self, *epochs: tuple[int, int], end: int, start: int = 0) -> None:
        self.epochs = EpochHistory([(LeaderEpoch(e), Offset(o)) for e, o in epochs])
        self.log_start_offset, self.log_end_offset = Offset(start), Offset(end)

    @property
    def last_epoch(self) -> LeaderEpoch:
        return self.epochs.latest

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)


def compare(leader: Log, follower: Log) -> Refusal | None:
    told = Subscription(
        handle=1,
        topic_id=UUID(int=1),
        partition=0,
        leader_epoch=9,
        fetch_offset=follower.log_end_offset,
        last_epoch=follower.last_epoch,
        log_start_offset=follower.log_start_offset,
        promised_offset=follower.log_end_offset,
    )
    partition: Any = SimpleNamespace(log=leader)
    return difference(partition, told)


def agree(leader: Log, follower: Log, cut: Callable[[int], Log]) -> list[int]:
    """Cut a follower's log until it is a beginning of the leader's; return where."""
    places = []
    for _ in range(10):
        refusal = compare(leader, follower)
        if refusal is None:
            return places
        if refusal.error_code == OUT_OF_RANGE:
            return [*places, ANEW]
        assert refusal.error_code == SAME
        plog: Any = follower
        place = divergence(plog, refusal.epoch, refusal.end_offset)
        assert place < follower.log_end_offset, "each cut makes it shorter"
        places.append(place)
        follower = cut(place)
    raise AssertionError("they never agree")


def cut_of(follower: Log) -> Callable[[int], Log]:
    def cut(place: int) -> Log:
        kept = [(int(e), int(o)) for e, o in follower.epochs.entries if o < place]
        return Log(*kept, end=place, start=follower.log_start_offset)

    return cut


def test_who_is_a_beginning_goes_on() -> None:
    leader = Log((1, 0), (3, 10), end=20)
    for follower in (
        Log(end=0),
        Log((1, 0), end=5),
        Log((1, 0), end=10),
        Log((1, 0), (3, 10), end=20),
    ):
        assert compare(leader, follower) is None


@pytest.mark.parametrize(
    ("leader", "follower", "cuts"),
    [
        # H1: ahead of the leader in the same epoch is not caught up.
        (Log((1, 0), end=10), Log((1, 0), end=15), [10]),
        # It has an epoch that never counted.
        (Log((1, 0), (4, 10), end=20), Log((1, 0), (3, 8), end=30), [8]),
        # The leader has only begun its epoch, and written nothing in it.
        (Log((1, 0), end=10), Log((1, 0), (5, 7), end=12), [7]),
        # Two rounds (KIP-279): what looks like a common epoch ends elsewhere.
        (Log((1, 0), (4, 5), end=9), Log((1, 0), (2, 4), (3, 8), end=12), [4]),
        # All that is left is older than everything of the leader's.
        (Log((2, 0), (6, 3), end=9), Log((1, 0), (3, 6), (5, 8), end=12), [6, ANEW]),
    ],
)
def test_where_histories_part_the_follower_is_cut(
    leader: Log, follower: Log, cuts: list[int]
) -> None:
    assert agree(leader, follower, cut_of(follower)) == cuts


def test_below_the_log_start_and_beyond_the_end_it_begins_anew() -> None:
    leader = Log((3, 40), end=60, start=40)
    for follower in (Log((3, 0), end=20), Log((1, 0), end=45), Log(end=70, start=70)):
        refusal = compare(leader, follower)
        assert refusal is not None and refusal.error_code == OUT_OF_RANGE
        assert (refusal.log_start_offset, refusal.log_end_offset) == (40, 60)


def test_a_follower_that_promises_nonsense_is_not_left_behind() -> None:
    """Its stream ends; the partition must not go on feeding nobody."""
    feeds = feeds_of(n2=7)
    _, feed = ask(feeds, 2, 7)
    assert feed is not None
    subscribers: list[object] = []
    progress = FollowerProgress(NodeId(2), 0)
    partition = SimpleNamespace(
        topic_partition="t-0",
        log=Log((1, 0), end=20),
        leader=SimpleNamespace(followers={NodeId(2): progress}),
        check_serving=lambda epoch: None,
        subscribe=subscribers.append,
        unsubscribe=subscribers.remove,
    )
    key = (UUID(int=1), 0)
    feeds.__dict__["_replicas"] = SimpleNamespace(
        by_id={key: partition}, roles=SimpleNamespace(check_lease=lambda: None)
    )
    feeds.__dict__["clock"] = SimpleNamespace(now_ms=lambda: 0)
    told = Subscription(1, *key, 1, 20, 1, 0, promised_offset=-5)
    with pytest.raises(ProtocolError, match="promised -5"):
        feeds.accept(feed, told)
    assert not subscribers and progress.node_epoch == -1


def test_who_is_in_sync_with_a_log_of_which_all_is_deleted_is_not_cut() -> None:
    """The leader joined after everything was deleted: its log begins there, and knows no epoch."""
    leader = Log(end=3, start=3)
    assert compare(leader, Log((0, 0), end=3)) is None
    refusal = compare(leader, Log((0, 0), end=2))
    assert refusal is not None and refusal.error_code == OUT_OF_RANGE
    refusal = compare(leader, Log((0, 0), end=5))
    assert refusal is not None and refusal.error_code == OUT_OF_RANGE, "cut at the leader's end"
    assert (refusal.log_start_offset, refusal.log_end_offset) == (3, 3)


@pytest.mark.parametrize("counted", ["", "isr", "elr", "told", "pending"])
def test_who_is_counted_on_keeps_an_empty_log_that_begins_behind_its_leaders(counted: str) -> None:
    """Its leader has yet to delete what is deleted there. Nobody else's deletions are believed."""
    two = NodeId(2)
    feeds = feeds_of(n2=7)
    _, feed = ask(feeds, 2, 7)
    assert feed is not None
    key: Any = (UUID(int=1), 0)
    leader = SimpleNamespace(followers={two: FollowerProgress(two, 0)}, isr=(), pending=())
    image = SimpleNamespace(isr=(), elr=())
    members = {"isr": image, "elr": image, "told": leader, "pending": leader}
    if counted:
        setattr(members[counted], "isr" if counted == "told" else counted, (two,))
    topics: Any = feeds.image.topics_by_id
    topics[key[0]] = SimpleNamespace(partition=lambda _: image)
    partition = SimpleNamespace(
        topic_partition="t-0",
        log=Log((1, 0), end=20),
        leader=leader,
        check_serving=lambda epoch: None,
        subscribe=lambda fed: None,
        on_progress=lambda *_: None,
    )
    feeds.__dict__["_replicas"] = SimpleNamespace(
        by_id={key: partition}, roles=SimpleNamespace(check_lease=lambda: None)
    )
    feeds.__dict__["clock"] = SimpleNamespace(now_ms=lambda: 0)
    for start, end in ((5, 5), (5, 6), (0, 0)):
        found = feeds.accept(feed, Subscription(1, *key, 1, end, 1, start, promised_offset=end))
        if start == end == 5 and not counted:
            assert isinstance(found, Refusal) and found.error_code == OUT_OF_RANGE
            assert (found.log_start_offset, found.log_end_offset) == (0, 20)
        else:
            assert not isinstance(found, Refusal)
