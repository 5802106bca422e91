"""What is read ahead of a peer: used by the next fetch, never wrong, bounded, given back."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from dlogd.net.disk_reader import AHEAD_IDLE_CALLS, HeldReads
from dlogd.net.reply_queue import ReplyQueue
from tests.fakes.late_engine import FakeSegment, LateEngine

DATA = random.Random(7).randbytes(20_000)


class Consumer:
    """A connection whose peer takes everything and asks for what follows."""

    def __init__(self, engine: LateEngine, held: HeldReads, segment: FakeSegment) -> None:
        self.engine, self.segment = engine, segment
        self.taken = bytearray()
        self.errors: list[BaseException] = []
        self.position = 0
        self.room = 1 << 20
        self.replies = ReplyQueue(engine, held, self.errors.append, lambda: None)  # type: ignore[arg-type]
        peer: Any = SimpleNamespace(send=self.send, close=lambda: None)
        self.replies.attach(peer)

    def send(self, buffers: Any) -> int:
        data = b"".join(buffers)[: self.room]
        self.room -= len(data)
        self.taken += data
        return len(data)

    @property
    def kept(self) -> int:
        """How many reads are kept for this peer."""
        return len(self.replies._loading._spans)

    def fetch(self, length: int, readable_end: int = 20_000) -> None:
        """Ask for the next bytes; the reads are answered by whoever calls `finish_reads`."""
        pieces = [self.segment.piece(self.position, length, readable_end)]
        self.position += length
        self.replies.open().fill(pieces).drain()

    def finish_reads(self) -> int:
        """Answer all reads; return how many there were."""
        count = 0
        while self.engine.waiting:
            self.engine.waiting.pop(0)()
            count += 1
        return count


def start(count_max: int = 8) -> tuple[LateEngine, HeldReads, FakeSegment, Consumer]:
    engine, held, segment = LateEngine(), HeldReads(count_max), FakeSegment(DATA, 20_000)
    return engine, held, segment, Consumer(engine, held, segment)


def test_one_who_reads_on_finds_the_next_bytes_in_memory() -> None:
    engine, _, _, consumer = start()
    consumer.fetch(500)
    consumer.finish_reads()
    assert engine.buffers_out == 0  # nobody knows yet whether it reads on
    consumer.fetch(500)
    consumer.finish_reads()
    for _ in range(10):
        before = len(consumer.taken)
        consumer.fetch(700)
        assert len(consumer.taken) > before  # at once, without waiting for the disk
        consumer.finish_reads()
    assert bytes(consumer.taken) == DATA[: consumer.position]


def test_the_next_read_is_under_way_while_the_last_is_taken() -> None:
    engine, _, _, consumer = start()
    consumer.fetch(2500)
    engine.waiting.pop(0)()
    assert len(consumer.taken) == 1000
    assert len(engine.waiting) == 1
    consumer.finish_reads()
    assert bytes(consumer.taken) == DATA[:2500]


def test_what_jumps_about_is_not_read_ahead() -> None:
    engine, _, _, consumer = start()
    for position in (9000, 100, 5000, 7000):
        consumer.position = position
        consumer.fetch(500)
        assert consumer.finish_reads() == 1
        assert engine.buffers_out == 0


def test_bytes_that_were_cut_off_are_never_sent_from_memory() -> None:
    engine, _, segment, consumer = start()
    for _ in range(2):
        consumer.fetch(500)
        consumer.finish_reads()
    assert engine.buffers_out == 2  # the rest of the last read, and what follows it
    other = bytes(reversed(DATA))
    segment.file = other
    segment.cut_count += 1
    consumer.fetch(500)
    consumer.finish_reads()
    assert bytes(consumer.taken[1000:]) == other[1000:1500]


@pytest.mark.parametrize("is_read", [True, False])
def test_who_is_being_sent_to_gets_the_rest_of_a_segment_that_is_cut_behind_it(
    is_read: bool,
) -> None:
    """What was read before the cut is not believed any more: it is read again."""
    engine, _, segment, consumer = start()
    consumer.room = 300
    consumer.fetch(800)
    if is_read:
        engine.waiting.pop(0)()
        assert len(consumer.taken) == 300  # and takes no more now
    segment.cut_count += 1
    if not is_read:
        engine.waiting.pop(0)()
    consumer.room = 20_000
    consumer.replies.on_writable()
    consumer.finish_reads()
    assert bytes(consumer.taken) == DATA[:800]
    consumer.replies.close()
    assert (segment.acquired, engine.buffers_out) == (0, 0)


def test_a_range_found_before_a_cut_says_nothing_about_what_follows() -> None:
    _, _, segment, consumer = start()
    consumer.fetch(500)
    consumer.finish_reads()
    piece = segment.piece(500, 500, 20_000)
    assert piece.readable_end_now == 20_000
    segment.cut_count += 1
    assert piece.readable_end_now == 1000


def test_a_read_ahead_that_fails_is_read_again_when_it_is_needed() -> None:
    engine, _, segment, consumer = start()
    failing: list[Any] = []
    read = engine.read
    consumer.fetch(500)
    consumer.finish_reads()
    engine.read = lambda file, position, length, done: (  # type: ignore[method-assign]
        failing.append(done) if position >= 1500 else read(file, position, length, done)
    )
    consumer.fetch(500)
    consumer.finish_reads()
    consumer.fetch(500)
    consumer.finish_reads()
    assert len(failing) == 1
    failing.pop()(OSError(5, "Input/output error"))
    assert not consumer.errors
    assert len(segment.read_errors) == 1
    engine.read = read  # type: ignore[method-assign]
    consumer.fetch(500)
    consumer.finish_reads()
    assert bytes(consumer.taken) == DATA[:2000]


def test_few_may_read_ahead_and_those_that_went_silent_make_room() -> None:
    engine, held, segment, first = start(count_max=2)
    assert held.ahead_count_max == 1
    for _ in range(2):
        first.fetch(500)
        first.finish_reads()
    assert (held.ahead_count_now, engine.buffers_out) == (1, 2)
    second = Consumer(engine, held, segment)
    rounds = 0
    while second.kept == 0:
        second.fetch(150)
        second.finish_reads()
        rounds += 1
        assert rounds <= AHEAD_IDLE_CALLS
    assert rounds > 2
    assert (held.ahead_count_now, first.kept) == (1, 0)
    first.replies.close()
    second.replies.close()
    second.finish_reads()
    assert (segment.acquired, engine.buffers_out, held.ahead_count_now) == (0, 0, 0)


def test_at_the_end_nothing_is_kept() -> None:
    engine, held, segment, consumer = start()
    while consumer.position < 20_000:
        consumer.fetch(500)
        consumer.finish_reads()
    assert (segment.acquired, engine.buffers_out, held.ahead_count_now) == (0, 0, 0)
    assert bytes(consumer.taken) == DATA
