"""The judges of images: each finds its breach, and none complains about what may be."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from dlog.client.views import PartitionView
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.machine.image_changes import with_topics
from dlogd.metadata.state.image import EMPTY_IMAGE, PartitionImage, TopicImage
from tests.cluster.image_journal import ImageJournal, PartitionSeen, read_images
from tests.cluster.image_judges import GRACE_S, MinIsrJudge, by_partition, judge_images
from tests.cluster.observers import Book
from tests.histories.history import LogKey, Outcome, Send

KEY = LogKey(UUID(int=7), "t", 0)
S = 1_000_000_000


def seen(version: int, **changes: object) -> PartitionSeen:
    """Return what node 1 saw of a partition, one second a version."""
    found = PartitionSeen(
        at_ns=version * S,
        node_id=1,
        version=version,
        topic=KEY.topic,
        topic_id=KEY.topic_id.hex,
        partition=0,
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        elr=(),
        adding=(),
        min_isr=2,
    )
    return found._replace(**changes)  # type: ignore[arg-type]


ALONE = seen(10, isr=(1,), elr=(2,), partition_epoch=1)
AGAIN = seen(20, isr=(1, 2), partition_epoch=2)
GOOD = [
    seen(1),
    seen(1, node_id=2, at_ns=3 * S),
    ALONE,
    AGAIN,
    seen(21, leader=-1, leader_epoch=1, partition_epoch=3, isr=()),
    seen(22, leader=2, leader_epoch=2, partition_epoch=4, isr=(2,)),
    # A life that begins later has what it left.
    seen(10, node_id=3, at_ns=30 * S, isr=(1,), elr=(2,), partition_epoch=1),
]
BAD = {
    "images-differ": [seen(1), seen(1, node_id=2, isr=(1, 2))],
    "epoch": [seen(1, leader_epoch=3), seen(2, leader_epoch=2, partition_epoch=1)],
    "two-leaders": [
        seen(1),
        seen(2, leader=-1, leader_epoch=0, partition_epoch=1),
        seen(3, leader=2, partition_epoch=2),
    ],
    "partition-epoch": [seen(1), seen(2, isr=(1, 2))],
    "isr": [seen(1, isr=(1, 4))],
}


def names(texts: list[str]) -> set[str]:
    return {text.partition(":")[0] for text in texts}


def test_what_may_be_is_no_breach() -> None:
    assert judge_images(by_partition(GOOD)) == []


@pytest.mark.parametrize("name", sorted(BAD))
def test_each_breach_is_found(name: str) -> None:
    assert name in names(judge_images(by_partition(BAD[name])))


def test_isrs_without_their_leader_or_with_who_is_eligible_are_told() -> None:
    assert names(judge_images(by_partition([seen(1, isr=(2, 3))]))) == {"isr"}
    assert names(judge_images(by_partition([seen(1, elr=(2,))]))) == {"isr"}
    assert names(judge_images(by_partition([seen(1, isr=(1, 1, 2))]))) == {"isr"}


def send(asked_s: float, answered_s: float, acks: int = -1) -> Send:
    return Send("p", KEY, (1,), acks, int(asked_s * S), None, 1, int(answered_s * S), Outcome.OK, 5)


def breaches(*sends: Send) -> tuple[int, int]:
    """Return how many acknowledgements are breaches, and how many sends could be some."""
    judge = MinIsrJudge(by_partition(GOOD[:4]))
    return len(judge.judge(sends)), judge.asked


def test_who_acknowledges_while_too_few_are_in_sync_is_found() -> None:
    alone_s = 10 + GRACE_S
    assert breaches(send(alone_s + 1, 19)) == (1, 1)
    # It waited until another one was in sync; or the leader might not have known yet.
    assert breaches(send(alone_s + 1, 20.1)) == (0, 1)
    assert breaches(send(alone_s - 1, 19)) == (0, 0)
    assert breaches(send(5, 6), send(alone_s + 1, 19, acks=1), send(25, 26)) == (0, 0)


def test_replicas_that_are_added_are_not_counted_and_the_end_is_open() -> None:
    lonely = seen(1, min_isr=3, isr=(1, 2), replicas=(1, 2, 3), adding=(3,))
    assert MinIsrJudge(by_partition([lonely])).judge([send(90, 91)]) == []
    lonely = lonely._replace(adding=())
    assert names(MinIsrJudge(by_partition([lonely])).judge([send(90, 91)])) == {"min-isr"}


def test_a_journal_holds_what_is_new_and_bears_a_torn_line(tmp_path: Path) -> None:
    alone = PartitionImage(
        replicas=(NodeId(1),),
        isr=(NodeId(1),),
        leader=NodeId(1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )
    topic = TopicImage(
        name="t",
        topic_id=KEY.topic_id,
        partitions=(alone, alone),
        configs={"min.insync.replicas": "2"},
    )
    image = with_topics(EMPTY_IMAGE, [topic])
    path = tmp_path / "images"
    ImageJournal(path).note(1, EMPTY_IMAGE, image)
    with path.open("a") as file:
        file.write("[1,2,[3]")
    ImageJournal(path).note(2, EMPTY_IMAGE, image)
    found = list(read_images(path))
    assert [(each.node_id, each.partition) for each in found] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert found[0].replicas == (1,) and found[0].min_isr == 2


def test_a_leader_that_another_node_tells_otherwise_is_found() -> None:
    told = PartitionView(
        partition=0, leader=1, leader_epoch=3, replicas=(1, 2), isr=(1, 2), offline=()
    )
    book = Book()
    book.take(1, ("t", 0), told)
    book.take(2, ("t", 0), told)
    with pytest.raises(AssertionError, match="node 1 told of the leader 1"):
        book.take(2, ("t", 0), replace(told, leader=2))
    with pytest.raises(AssertionError):
        book.take(1, ("t", 0), replace(told, isr=(1, 3)))
