"""Batches that are numbered anew, or not: copies may be under way, to leaders old and new."""

import pytest

from dlog.client.futures import UnknownOutcomeError, Written
from dlog.client.producing.partition_queue import Batch
from dlog.errors import (
    DisconnectedError,
    InvalidRecordError,
    OutOfOrderSequenceNumberError,
    WireError,
)
from tests.fakes.renewed_topic import Scene
from tests.fakes.sequenced_leader import Leader


class Story:
    """A producer and the leader that knows it; batches of one record, numbered from 0."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.queue = self.scene.queue()
        self.leader = Leader()
        self.queue.follow((1, 1))
        self.scene.send(b"0")
        self.go(self.scene.take())

    def take(self, *values: bytes) -> list[Batch]:
        """Give records, and take the batch of each for the wire."""
        taken = []
        for value in values:
            self.scene.send(value)
            taken.append(self.scene.take())
        return taken

    def go(self, batch: Batch) -> None:
        """Let the leader see a batch and the producer its answer."""
        try:
            self.scene.outcomes.written(batch, self.leader.append(bytes(batch.encoded())), -1)
        except WireError as error:
            self.scene.outcomes.failed(batch, error, 0.0)

    def lose(self, *batches: Batch) -> list[bytes]:
        """Break the connection; return what may be read from it later."""
        late = [bytes(batch.encoded()) for batch in batches]
        for batch in batches:
            self.scene.outcomes.failed(batch, DisconnectedError("by the test"), 0.0)
        return late

    def go_on(self) -> None:
        """Send whatever waits until nothing does."""
        for _ in range(20):
            if self.queue.is_idle:
                break
            self.go(self.scene.take())
        assert self.queue.is_idle


def test_what_may_arrive_behind_one_that_was_given_up_is_not_numbered_anew() -> None:
    """Both wait in a connection that the leader does not read: it waits for append memory."""
    story = Story()
    outcomes = story.scene.outcomes
    first, second, third = story.take(b"1", b"2", b"3")
    late = story.lose(first, second, third)
    first.deadline_s = 1.0
    outcomes.expire(story.queue, 2.0)
    again = story.scene.take()
    assert again is second
    with pytest.raises(OutOfOrderSequenceNumberError) as refusal:
        story.leader.append(bytes(again.encoded()))
    outcomes.failed(again, refusal.value, 2.0)
    for data in late:
        story.leader.append(data)
    unsent = story.scene.send(b"4")
    story.go_on()
    assert story.leader.log == [0, 1, 2, 3, 4]
    assert isinstance(second.result.error, UnknownOutcomeError)
    assert third.result.base_offset == 3
    assert isinstance(unsent.outcome(), Written)


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_in_doubt_does_not_overtake_at_a_leader_that_does_not_know_the_producer(
    is_known: bool,
) -> None:
    """It takes any sequence; what is to be numbered anew comes first, so it goes first there."""
    story = Story()
    refused, second, third = story.take(b"1", b"2", b"3")
    story.scene.outcomes.failed(refused, InvalidRecordError("by the test"), 0.0)
    story.go(second)
    assert story.queue.needs_epoch
    story.lose(third)
    if not is_known:
        story.leader = Leader()
    assert story.queue.follow((2, 2))
    story.go_on()
    assert story.leader.log == ([0, 2, 3] if is_known else [2, 3])
