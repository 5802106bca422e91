"""What a node gives up: deleted topics, replicas that moved away, what was left from earlier.

And when a replica may begin anew.
"""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import KafkaStorageError
from dlog.types import NO_NODE, LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.state.image import ClusterImage, NodeRegistration, PartitionImage, TopicImage
from dlogd.replication.placement_diff import given_up, may_begin_anew

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


@pytest.mark.parametrize("isr", [(2,), (1, 2), ()])
def test_a_replica_begins_anew_where_others_have_it_and_the_cluster_knows_what_has_failed(
    isr: tuple[int, ...],
) -> None:
    """Else an older copy on a directory that has failed would pass for it after a crash."""
    of_topic = topic(A, (1, 2))
    part = replace(of_topic.partitions[0], isr=tuple(map(NodeId, isr)))
    of_topic = replace(of_topic, partitions=(part,))
    node = NodeRegistration(
        node_id=NodeId(1),
        node_epoch=1,
        directory_ids=(A, B),
        addresses=(),
        rack=None,
        version="",
        fenced=False,
    )

    def may(known: tuple[UUID, ...], failed: tuple[UUID, ...]) -> bool:
        image = ClusterImage(nodes={NodeId(1): replace(node, failed_directory_ids=known)})
        return may_begin_anew(image, of_topic, 0, NodeId(1), failed)

    assert may((), ()) == may((A,), (A,)) == may((A, B), (B,)) == (isr == (2,))
    if isr == (2,):
        with pytest.raises(KafkaStorageError, match="does not know yet"):
            may((A,), (A, B))
    else:
        assert not may((A,), (A, B))
