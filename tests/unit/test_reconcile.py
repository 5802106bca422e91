"""What a node gives up: deleted topics, replicas that moved away, what was left from earlier."""

from typing import Any
from uuid import UUID

from dlog.types import NO_NODE, LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.image import ClusterImage, PartitionImage, TopicImage
from dlogd.replication.reconcile import given_up

A, B = UUID(int=1), UUID(int=2)


def topic(topic_id: UUID, *replicas: tuple[int, ...]) -> TopicImage:
    partitions = tuple(
        PartitionImage(
            replicas=tuple(map(NodeId, each)),
            isr=(),
            leader=NO_NODE,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
        )
        for each in replicas
    )
    return TopicImage(name=f"t{topic_id.int}", topic_id=topic_id, partitions=partitions)


def gone(before: list[TopicImage], now: list[TopicImage], **values: Any) -> list[tuple[UUID, int]]:
    fields: dict[str, Any] = {
        "changed": now,
        "here": [(each.topic_id, n) for each in before for n, _ in enumerate(each.partitions)],
        "undeleted": {},
        **values,
    }
    image = ClusterImage(topics_by_id={each.topic_id: each for each in now})
    known = {each.topic_id: each for each in before}
    return sorted(given_up(NodeId(1), image, before=known, **fields), key=str)


def test_a_deleted_topic_is_given_up_where_it_was() -> None:
    before = [topic(A, (1, 2), (2, 3)), topic(B, (1,))]
    assert gone(before, [before[1]], changed=[]) == [(A, 0)]


def test_a_replica_that_moved_away_is_given_up_and_the_others_stay() -> None:
    assert gone([topic(A, (1, 2), (1, 3))], [topic(A, (2, 3), (1, 3))]) == [(A, 0)]
    assert gone([topic(A, (1, 2))], [topic(A, (2, 3))], here=[]) == []


def test_what_could_not_be_deleted_is_tried_again_unless_it_came_back() -> None:
    moved, back = topic(A, (2,)), topic(A, (1, 2))
    assert gone([moved], [moved], here=[], changed=[], undeleted={(A, 0): moved}) == [(A, 0)]
    assert gone([moved], [back], here=[], undeleted={(A, 0): moved}) == []
