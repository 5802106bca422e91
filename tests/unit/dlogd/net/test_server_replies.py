"""Replies leave in the order of requests, byte for byte, however slowly the peer takes them."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dlogd.net import reply_queue as module
from dlogd.net.disk_reader import HeldReads
from dlogd.net.reply_queue import ReplyQueue
from dlogd.net.reply_slot import Piece, RangePiece
from dlogd.net.send_turns import Turn
from dlogd.net.socket_writer import Buffers
from tests.fakes.late_engine import FakeSegment, LateEngine


class Peer:
    """An outlet that takes a random part of what is offered."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.taken = bytearray()
        self.short = False

    def send(self, buffers: Buffers) -> int:
        data = b"".join(buffers)
        count = self.rng.choice([0, len(data), self.rng.randint(0, len(data))])
        self.taken += data[:count]
        self.short = count < len(data)
        return count

    def on_pause(self) -> None: ...

    def on_resume(self) -> None: ...

    def close(self) -> None: ...


def draw_pieces(rng: random.Random, segment: FakeSegment) -> list[Piece]:
    pieces: list[Piece] = []
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            pieces.append(rng.randbytes(rng.randint(1, 50)))
        else:
            position = rng.randint(0, 19_000)
            pieces.append(segment.piece(position, rng.randint(1, 20_000 - position)))
    return pieces


def draw_next(rng: random.Random, segment: FakeSegment, position: int) -> list[Piece]:
    """Return an answer that goes on where the last one ended, as those of a consumer do."""
    length = min(rng.choice([1, 300, 1000, 2500]), 20_000 - position)
    readable_end = rng.choice([None, rng.randint(position + length, 20_000), 20_000])
    return [b"head", segment.piece(position, length, readable_end), b"tail"]


def expected_bytes(pieces: list[Piece], segment: FakeSegment) -> bytes:
    return b"".join(
        segment.file[each.position : each.position + each.length]
        if isinstance(each, RangePiece)
        else bytes(each)
        for each in pieces
    )


def draw_answers(rng: random.Random, segment: FakeSegment) -> list[list[Piece]]:
    answers = []
    position = 0
    for _ in range(12):
        if rng.random() < 0.7 and position < 19_000:
            answers.append(draw_next(rng, segment, position))
            assert isinstance(answers[-1][1], RangePiece)
            position += answers[-1][1].length
        else:
            answers.append(draw_pieces(rng, segment))
    return answers


@pytest.mark.parametrize("seed", range(60))
def test_the_stream_is_what_was_asked_for_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(module, "SLICE_BYTES", rng.choice([100, 1500, 1 << 20]))
    turns: list[Turn] = []
    pacer: Any = rng.choice([None, SimpleNamespace(ask=turns.append)])
    engine, peer, held = LateEngine(), Peer(rng), HeldReads(rng.choice([0, 1, 2]), pacer)
    errors: list[BaseException] = []
    replies = ReplyQueue(engine, held, errors.append, lambda: None)  # type: ignore[arg-type]
    replies.attach(peer)
    segment = FakeSegment(rng.randbytes(20_000), rng.choice([0, 10_000, 20_000]))
    slots = [(replies.open(), pieces) for pieces in draw_answers(rng, segment)]
    expected = b"".join(expected_bytes(pieces, segment) for _, pieces in slots)
    while slots or len(replies):
        steps: list[Callable[[], None]] = []
        if slots:
            slot, pieces = slots[rng.randrange(len(slots))]
            steps.append(lambda slot=slot, pieces=pieces: slot.fill(pieces).drain())  # type: ignore[misc]
        if engine.waiting:
            steps.append(engine.waiting[0])
        if peer.short:
            steps.append(replies.on_writable)
        if turns:
            steps.append(turns[0].on_turn)
        step = rng.choice(steps)
        if slots and step is steps[0]:
            slots = [entry for entry in slots if entry[0] is not slot]
        elif engine.waiting and step is engine.waiting[0]:
            engine.waiting.pop(0)
        elif turns and step == turns[0].on_turn:
            turns.pop(0)
        else:
            peer.short = False
        step()
        assert replies.kept_bytes == module._bytes_of(replies._out)
    assert bytes(peer.taken) == bytes(expected)
    replies.close()
    while engine.waiting:
        engine.waiting.pop(0)()
    assert held.ahead_count_now == 0
    assert (segment.acquired, engine.buffers_out, held.count_now) == (0, 0, 0)
    assert not errors


@pytest.mark.parametrize("seed", range(40))
def test_closing_at_any_moment_gives_everything_back(seed: int) -> None:
    rng = random.Random(seed)
    engine, peer, held = LateEngine(), Peer(rng), HeldReads(1)
    replies = ReplyQueue(engine, held, lambda error: None, lambda: None)  # type: ignore[arg-type]
    replies.attach(peer)
    segment = FakeSegment(rng.randbytes(20_000), 20_000)
    slots = [replies.open() for _ in range(4)]
    closing_step = rng.randint(0, 8)
    for step in range(9):
        if step == closing_step:
            replies.close()
        if step % 2 == 0 and slots:
            slots.pop(0).fill([b"head", segment.piece(100, 5000, 20_000)]).drain()
        elif engine.waiting:
            engine.waiting.pop(0)()
        elif not replies.is_closed:
            replies.on_writable()
    while slots:
        slots.pop(0).fill([segment.piece(0, 10)]).drain()
    while engine.waiting:
        engine.waiting.pop(0)()
    replies.close()
    assert (segment.acquired, engine.buffers_out, held.count_now) == (0, 0, 0)


def test_a_segment_that_ends_early_is_an_error_not_a_hang() -> None:
    engine, peer = LateEngine(), Peer(random.Random(1))
    errors: list[BaseException] = []
    replies = ReplyQueue(engine, HeldReads(1), errors.append, lambda: None)  # type: ignore[arg-type]
    replies.attach(peer)
    segment = FakeSegment(b"x" * 10, 20)
    replies.open().fill([segment.piece(10, 5)]).drain()
    engine.waiting.pop(0)()
    assert len(errors) == 1


def test_a_blocked_peer_loses_its_buffer_to_those_that_blocked_later() -> None:
    engine, held = LateEngine(), HeldReads(1)
    held.ahead_count_max = 0
    segment = FakeSegment(bytes(20_000), 20_000)
    all_replies = []
    for _ in range(3):
        peer: Any = SimpleNamespace(send=lambda buffers: 100, close=lambda: None)
        replies = ReplyQueue(engine, held, lambda error: None, lambda: None)  # type: ignore[arg-type]
        replies.attach(peer)
        replies.open().fill([segment.piece(0, 5000)]).drain()
        engine.waiting.pop(0)()
        assert (engine.buffers_out, held.count_now) == (1, 1)
        all_replies.append(replies)
    all_replies[2].on_writable()
    assert not engine.waiting  # the last one has kept it
    all_replies[0].on_writable()
    assert len(engine.waiting) == 1
    for replies in all_replies:
        replies.close()
    engine.waiting.pop(0)()
    assert (segment.acquired, engine.buffers_out, held.count_now) == (0, 0, 0)


def test_a_head_leaves_with_the_bytes_that_are_read_for_it() -> None:
    engine, sent = LateEngine(), list[bytes]()

    def send(buffers: Buffers) -> int:
        sent.append(b"".join(buffers))
        return len(sent[-1])

    peer: Any = SimpleNamespace(send=send, close=lambda: None)
    replies = ReplyQueue(engine, HeldReads(1), lambda error: None, lambda: None)  # type: ignore[arg-type]
    replies.attach(peer)
    segment = FakeSegment(b"x" * 20_000, 20_000)
    replies.open().fill([b"head", segment.piece(0, 300), b"tail"]).drain()
    assert not sent
    engine.waiting.pop(0)()
    assert sent == [b"head" + b"x" * 300 + b"tail"]
    assert segment.acquired == 0


def test_small_replies_that_have_not_left_count_as_well() -> None:
    room = 300

    def send(buffers: Any) -> int:
        nonlocal room
        taken = min(room, sum(map(len, buffers)))
        room -= taken
        return taken

    outlet: Any = SimpleNamespace(send=send, close=lambda: None)
    replies = ReplyQueue(LateEngine(), HeldReads(1), print, lambda: None)  # type: ignore[arg-type]
    replies.attach(outlet)
    replies.reply(bytes(100))
    assert replies.kept_bytes == 0
    replies.reply(bytes(1000))
    assert replies.kept_bytes == 800
    replies.reply(bytes(50))
    assert replies.kept_bytes == 850
    room = 10_000
    replies.on_writable()
    assert (replies.kept_bytes, len(replies)) == (0, 0)
    replies.close()
