"""A topic that is made anew under a producer: other queues, clear outcomes, no mix-up."""

from uuid import UUID

import pytest

from dlog.client.futures import BatchDelivery, RefusedError, UnknownOutcomeError, Written
from dlog.client.producing.bulk_append import bulk_append
from dlog.client.producing.partition_queue import ACKS_NONE
from dlog.errors import DisconnectedError, DlogError, NotLeaderOrFollowerError
from tests.fakes.renewed_topic import NEW, OLD, Scene
from tests.fakes.sequenced_leader import Leader


def test_what_was_not_sent_is_refused_and_what_was_tried_is_unknown() -> None:
    scene = Scene()
    tried = scene.send(b"0")
    scene.outcomes.failed(scene.take(), DisconnectedError("by the test"), 0.0)
    open_one = scene.send(b"1", partition=1)
    scene.know(1, NEW)
    assert isinstance(tried.outcome(), UnknownOutcomeError)
    assert isinstance(open_one.outcome(), RefusedError)
    assert scene.accumulator.used_bytes == 0
    assert not scene.accumulator.active
    assert (scene.counters.records_unknown, scene.counters.records_refused) == (1, 1)
    topic = scene.accumulator.topic("u")
    assert topic is not None
    assert len(topic.queues) == 1
    with pytest.raises(ValueError, match="has partitions 0 to 0"):
        scene.send(b"", partition=1)


@pytest.mark.parametrize("is_written", [True, False])
def test_what_is_on_the_wire_ends_by_its_answer(is_written: bool) -> None:
    scene = Scene()
    delivery = scene.send(b"0")
    batch = scene.take()
    scene.know(1, NEW)
    assert delivery.outcome() is None
    if is_written:
        scene.outcomes.written(batch, 0, -1)
        assert delivery.outcome() == Written(0, 0, 1)
    else:
        scene.outcomes.failed(batch, NotLeaderOrFollowerError("by the test"), 0.0)
        assert isinstance(delivery.outcome(), UnknownOutcomeError)
    assert not scene.accumulator.active
    assert not scene.accumulator.incomplete


@pytest.mark.parametrize("lives", [1, 2])
def test_the_first_batch_of_the_new_topic_is_no_repetition_of_one_of_the_old(lives: int) -> None:
    """A batch for the old topic reaches the new one, which has the same name."""
    scene = Scene()
    leader = Leader()
    scene.send(b"0")
    late = scene.take()
    for life in range(lives):
        scene.know(1, UUID(int=2 + life))
    assert leader.append(bytes(late.encoded())) == 0
    scene.outcomes.written(late, 0, -1)
    scene.send(b"1")
    assert leader.append(bytes(scene.take().encoded())) == 1
    assert leader.log == [0, 1]


def test_partitions_that_are_added_later_take_another_producer_id_too() -> None:
    scene = Scene()
    leader = Leader()
    scene.send(b"0", partition=1)
    late = scene.take(1)
    scene.know(1, NEW)
    scene.know(2, NEW)
    leader.append(bytes(late.encoded()))
    scene.send(b"1", partition=1)
    assert leader.append(bytes(scene.take(1).encoded())) == 1


def test_a_life_that_was_taken_for_the_older_one_has_queues_again() -> None:
    """The cluster had been wrong: it was met first, and then a node that lagged."""
    scene = Scene()
    scene.know(1, NEW)
    scene.know(2, OLD)
    scene.send(b"0")
    assert scene.take().queue.topic_id == OLD


def test_a_cluster_that_tells_no_ids_changes_nothing() -> None:
    scene = Scene()
    delivery = scene.send(b"0", partition=1)
    scene.know(1, UUID(int=0))
    assert delivery.outcome() is None
    assert scene.queue(1).open is not None


def test_many_keyed_records_on_their_way_do_not_go_where_the_old_topic_had_them() -> None:
    scene = Scene()
    values = [b"x" * 100] * 20
    append = bulk_append(
        scene.accumulator,
        "u",
        values,
        [b"%d" % n for n in range(20)],
        timestamp_ms=1,
        partition=None,
        delivery=BatchDelivery(),
    )
    append.advance(0.0)
    scene.know(3, NEW)
    with pytest.raises(DlogError, match="u was deleted and recreated"):
        append.advance(0.0)


def test_topics_without_acknowledgement_are_not_numbered() -> None:
    scene = Scene()
    scene.know(1, UUID(int=9), "v", acks=ACKS_NONE)
    topic = scene.accumulator.topic("v")
    assert topic is not None
    assert topic.queues[0].identity is None
    assert scene.queue().identity is not None


def test_five_batches_are_on_the_wire_and_no_sixth() -> None:
    """A leader remembers five: it would not know a repetition of an older one."""
    scene = Scene()
    for _ in range(10):
        scene.send(b"x" * 500)  # one is a batch, two are too many for one
    assert scene.queue().open is not None
    first = scene.take()
    assert scene.accumulator.take(scene.queue()) is None  # until the leader knows the producer
    scene.outcomes.written(first, 0, -1)
    taken = [scene.take() for _ in range(5)]
    assert scene.accumulator.take(scene.queue()) is None
    scene.outcomes.written(taken[0], 1, -1)
    scene.take()
    assert scene.accumulator.take(scene.queue()) is None
