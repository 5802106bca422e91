"""How far behind its oldest batch a producer may be: leaders know the last five batches again."""

from dlog.client.producing.partition_queue import Batch
from dlog.client.producing.produce_window import INFLIGHT_MAX
from dlog.errors import DisconnectedError, NotEnoughReplicasError, RequestTimedOutError
from tests.fakes.renewed_topic import Scene
from tests.fakes.sequenced_leader import Leader


class Window:
    """A producer whose second batch is in doubt: it goes again, and two behind it are done."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.queue = self.scene.queue()
        self.leader = Leader()
        self.sent = 0
        self.written(self.next())  # the leader knows the producer now
        self.doubtful, *others = [self.next() for _ in range(3)]
        self.fail(self.doubtful, RequestTimedOutError("by the test"))
        for batch in others:
            self.written(batch)
        assert self.scene.take() is self.doubtful

    def next(self) -> Batch:
        """Give one record more, and take its batch for the wire; the leader appends it."""
        self.scene.send(b"%d" % self.sent)
        self.sent += 1
        batch = self.scene.take()
        self.leader.append(bytes(batch.encoded()))
        return batch

    def written(self, batch: Batch) -> None:
        self.scene.outcomes.written(batch, 0, -1)

    def fail(self, batch: Batch, error: Exception) -> None:
        self.scene.outcomes.failed(batch, error, 0.0)

    def has_room(self) -> bool:
        """Return whether what waits, if anything does, would go."""
        if not self.queue.waiting and self.queue.open is None:
            return self.queue.has_room
        return self.queue.due_s(10.0, 0.0, rush=True) <= 10.0

    def leader_knows(self, batch: Batch) -> bool:
        """Return whether a repetition would be recognised."""
        end = len(self.leader.log)
        self.leader.append(bytes(batch.encoded()))
        return len(self.leader.log) == end


def test_no_more_goes_than_lets_the_oldest_be_known_again() -> None:
    window = Window()
    for _ in range(INFLIGHT_MAX - 3):  # the oldest, and two that are done
        assert window.has_room()
        window.next()
    window.scene.send(b"9")
    assert not window.has_room()
    assert window.scene.accumulator.take(window.queue) is None
    assert window.leader_knows(window.doubtful)
    window.written(window.doubtful)
    assert window.has_room()
    assert window.scene.take().record_count == 1


def test_what_failed_goes_again_one_after_the_other() -> None:
    window = Window()
    later = [window.next(), window.next()]
    for batch in (window.doubtful, *later):
        window.fail(batch, DisconnectedError("by the test"))
    window.scene.send(b"9")
    for batch in (window.doubtful, *later):
        assert window.scene.take() is batch
        assert window.leader_knows(batch)
    # The next one would be the fifth behind the oldest.
    assert not window.has_room()
    for batch in (window.doubtful, *later):
        window.written(batch)
    window.next()
    assert window.has_room()
    assert not window.queue.window


def test_what_is_given_up_and_may_be_written_counts_too() -> None:
    window = Window()
    later = [window.next(), window.next()]
    for batch in (window.doubtful, *later):
        window.fail(batch, DisconnectedError("by the test"))
    for batch in later:
        batch.deadline_s = 5.0
    window.scene.outcomes.expire(window.queue, 6.0)
    assert window.scene.take() is window.doubtful
    window.scene.send(b"9")
    assert not window.has_room()
    window.written(window.doubtful)
    assert window.has_room()


def test_those_in_doubt_behind_one_that_was_refused_count_too() -> None:
    window = Window()
    refused, in_doubt = window.next(), window.next()
    window.fail(window.doubtful, DisconnectedError("by the test"))
    window.fail(refused, NotEnoughReplicasError("by the test"))
    window.fail(in_doubt, DisconnectedError("by the test"))
    assert not refused.may_be_written
    assert window.scene.take() is window.doubtful
    assert window.has_room()
    window.queue.window.add((9,))
    assert not window.has_room()
