"""Frames come out of the byte stream whole, however the stream is cut."""

import random

import pytest

from dlog.errors import ProtocolError
from dlogd.net.frame_memory import LENT_COUNT_MAX, FrameMemory
from dlogd.net.frame_reader import RECEIVE_BYTES, SMALL_FRAME_BYTES, FrameReader

SHARED = bytearray(RECEIVE_BYTES)


def frames_of(sizes: list[int], rng: random.Random) -> list[bytes]:
    return [rng.randbytes(size) for size in sizes]


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def drain(intake: FrameReader, out: list[bytes]) -> None:
    while (frame := intake.next_frame()) is not None:
        buffer, start, end = frame
        out.append(bytes(buffer[start:end]))


def feed(intake: FrameReader, data: bytes, cut: int, out: list[bytes]) -> None:
    position = 0
    while position < len(data):
        view = intake.buffer()
        count = min(cut, len(view), len(data) - position)
        view[:count] = data[position : position + count]
        intake.received(count)
        drain(intake, out)
        position += count


@pytest.mark.parametrize("cut", [1, 3, 7, 100, 65_537, 1 << 20])
def test_frames_are_the_same_however_the_stream_is_cut(cut: int) -> None:
    rng = random.Random(cut)
    sizes = [8, 9, 100, 20] if cut < 8 else [8, 70_000, 100, 64 * 1024, 9, 3_000_000, 250_000, 8]
    frames = frames_of(sizes, rng)
    memory = FrameMemory(64 << 20)
    intake = FrameReader(SHARED, memory, 100 << 20)
    out: list[bytes] = []
    feed(intake, stream_of(frames), cut, out)
    assert out == frames
    assert not intake.is_mid_frame
    intake.close()
    assert memory.used_bytes == 0


@pytest.mark.parametrize("size", [-1, 0, 7, 1001, 2**31 - 1])
def test_impossible_lengths_are_refused(size: int) -> None:
    intake = FrameReader(SHARED, FrameMemory(1 << 20), 1000)
    view = intake.buffer()
    view[:4] = (size & 0xFFFFFFFF).to_bytes(4, "big")
    intake.received(4)
    with pytest.raises(ProtocolError, match=r"frame of -?\d+ bytes is outside 8..1000"):
        intake.next_frame()


@pytest.mark.parametrize("came", [5, 5_000, 60_000, 100_000, 700_000, 3_000_000])
@pytest.mark.parametrize("address", [None, "10.0.0.1"])
def test_memory_follows_what_arrived_not_what_was_promised(came: int, address: str | None) -> None:
    memory = FrameMemory(1 << 30, has_shares=True)
    intake = FrameReader(SHARED, memory, 100 << 20, address)
    feed(intake, (90 << 20).to_bytes(4, "big") + bytes(came - 4), 4096, [])
    assert intake.is_mid_frame and not intake.is_starved
    assert came <= memory.used_bytes <= max(128 << 10, 2 * came)
    if came < SMALL_FRAME_BYTES:
        assert memory.used_bytes <= max(16 << 10, 2 * came)
    intake.close()
    assert memory.used_bytes == 0


def test_a_large_frame_waits_for_memory_and_goes_on() -> None:
    memory = FrameMemory(110_000)
    senders = [FrameReader(SHARED, memory, 100 << 20) for _ in range(3)]
    frame = random.Random(1).randbytes(100_000)
    data = stream_of([frame])
    out: list[bytes] = []
    for each in senders:
        feed(each, data[:70_000], 70_000, out)
    # One may go beyond the bound, so that those who hold memory never wait for each other.
    assert [each.is_starved for each in senders] == [False, False, True]
    woken: list[bool] = []

    def retry() -> bool:
        woken.append(senders[2].retry())
        return woken[-1]

    memory.when_available(retry, senders[2].share, grows=False)
    feed(senders[0], data[70_000:], 30_004, out)
    assert woken == [False] and senders[2].is_starved
    feed(senders[1], data[70_000:], 30_004, out)
    assert woken == [False, True] and not senders[2].is_starved
    feed(senders[2], data[70_000:], 30_004, out)
    assert out == [frame] * 3
    assert memory.used_bytes == 0


def test_a_held_frame_outlives_the_shared_buffer() -> None:
    frames = frames_of([50, 60, 70], random.Random(2))
    intake = FrameReader(SHARED, FrameMemory(1 << 20), 1 << 20)
    other = FrameReader(SHARED, FrameMemory(1 << 20), 1 << 20)
    data = stream_of(frames)
    view = intake.buffer()
    view[: len(data)] = data
    intake.received(len(data))
    frame = intake.next_frame()
    assert frame is not None
    frame = intake.next_frame()
    assert frame is not None
    buffer, start, end = intake.hold()
    feed(other, stream_of(frames_of([200], random.Random(3))), 1000, [])
    assert bytes(buffer[start:end]) == frames[1]
    out: list[bytes] = []
    drain(intake, out)
    assert out == [frames[2]]


def test_what_is_parked_outlives_the_shared_buffer() -> None:
    frames = frames_of([50, 60, 70], random.Random(4))
    intake = FrameReader(SHARED, FrameMemory(1 << 20), 1 << 20)
    other = FrameReader(SHARED, FrameMemory(1 << 20), 1 << 20)
    data = stream_of(frames)
    view = intake.buffer()
    view[: len(data)] = data
    intake.received(len(data))
    assert intake.next_frame() is not None
    intake.park()
    feed(other, stream_of(frames_of([200], random.Random(5))), 1000, [])
    out: list[bytes] = []
    drain(intake, out)
    assert out == frames[1:]


def test_a_buffer_that_nothing_was_read_into_changes_nothing() -> None:
    one, other = (FrameReader(SHARED, FrameMemory(1 << 20), 1 << 20) for _ in range(2))
    frame = random.Random(6).randbytes(500)
    data = stream_of([frame])
    out: list[bytes] = []
    feed(one, data[:300], 300, out)
    for _ in range(3):
        assert len(one.buffer()) == RECEIVE_BYTES - 300
        feed(other, stream_of([b"\xff" * 1000]), 1000, [])
    feed(one, data[300:], 300, out)
    assert out == [frame]


def test_each_byte_that_is_kept_is_charged_and_given_back() -> None:
    memory = FrameMemory(1 << 30)
    frames = frames_of([100, 200, 300], random.Random(7))
    data = stream_of(frames)
    intake = FrameReader(SHARED, memory, 1 << 20)
    out: list[bytes] = []
    feed(intake, data[:50], 50, out)
    assert memory.used_bytes == 50
    feed(intake, data[50:150], 100, out)
    assert memory.used_bytes == 46
    view = intake.buffer()
    view[: len(data) - 150] = data[150:]
    intake.received(len(data) - 150)
    assert intake.next_frame() is not None
    intake.hold()
    assert memory.used_bytes == 204 + 304
    assert intake.next_frame() is not None
    intake.park()
    assert intake.next_frame() is None
    assert memory.used_bytes == 0


def test_what_is_parked_is_charged() -> None:
    memory = FrameMemory(1 << 30)
    intake = FrameReader(SHARED, memory, 1 << 20)
    data = stream_of(frames_of([100, 200], random.Random(8)))
    view = intake.buffer()
    view[: len(data)] = data
    intake.received(len(data))
    assert intake.next_frame() is not None
    intake.park()
    assert memory.used_bytes == 204
    assert intake.next_frame() is not None
    intake.let_go()
    assert memory.used_bytes == 0


def test_a_large_frame_that_was_consumed_keeps_no_memory_while_its_answer_waits() -> None:
    memory = FrameMemory(64 << 20)
    intake = FrameReader(SHARED, memory, 100 << 20)
    data = stream_of([bytes(500_000)])
    position = 0
    while position < len(data):
        view = intake.buffer()
        count = min(len(view), 100_000, len(data) - position)
        view[:count] = data[position : position + count]
        intake.received(count)
        position += count
        if position < len(data):
            assert intake.next_frame() is None
    assert intake.next_frame() is not None
    assert memory.used_bytes
    intake.park()
    assert memory.used_bytes == 0
    assert intake.next_frame() is None


@pytest.mark.parametrize("seed", range(20))
def test_large_frames_share_bounded_memory_and_all_arrive(seed: int) -> None:
    """However their bytes interleave, and although each wants more than there is for all."""
    rng = random.Random(seed)
    bound = rng.choice([1, 3 << 20, 8 << 20])
    memory = FrameMemory(bound)
    largest = 12 << 20
    senders = []
    for number in range(6):
        frames = [bytes([number]) * rng.choice([100, 90_000, 3 << 20, largest]) for _ in range(3)]
        senders.append((FrameReader(SHARED, memory, 100 << 20), stream_of(frames), frames))
    positions = [0] * len(senders)
    outs: list[list[bytes]] = [[] for _ in senders]
    while any(positions[i] < len(data) for i, (_, data, _) in enumerate(senders)):
        ready = [
            i
            for i, (intake, data, _) in enumerate(senders)
            if positions[i] < len(data) and not intake.is_starved
        ]
        assert ready, "all wait for each other"
        i = rng.choice(ready)
        intake, data, _ = senders[i]
        view = intake.buffer()
        count = min(len(view), rng.choice([1000, 200_000, 4 << 20]), len(data) - positions[i])
        view[:count] = data[positions[i] : positions[i] + count]
        positions[i] += count
        intake.received(count)
        drain(intake, outs[i])
        if intake.is_starved:
            memory.when_available(intake.retry, intake.share, grows=intake.holds_memory)
        assert memory.used_bytes <= max(bound, 2 << 20) + largest + 4
    assert outs == [frames for _, _, frames in senders]
    assert memory.used_bytes == 0


def test_memory_has_fallen_once_after_each_peak() -> None:
    memory = FrameMemory(1 << 30)
    intake = FrameReader(SHARED, memory, 100 << 20)
    assert not memory.has_fallen()
    feed(intake, (90 << 20).to_bytes(4, "big") + bytes(10 << 20), 1 << 20, [])
    assert not memory.has_fallen()
    intake.close()
    assert memory.has_fallen()
    assert not memory.has_fallen()


def test_a_crowd_that_ends_no_first_frame_keeps_little_for_each_connection() -> None:
    memory = FrameMemory(256 << 20, has_shares=True)
    crowd = [FrameReader(SHARED, memory, 1 << 20, "192.0.2.1") for _ in range(500)]
    data = (60_100).to_bytes(4, "big") + bytes(59_996)
    for intake in crowd:
        sent = 0
        while sent < len(data) and not intake.is_starved:
            view = intake.buffer()
            count = min(len(view), len(data) - sent)
            view[:count] = data[sent : sent + count]
            sent += count
            intake.received(count)
            assert intake.next_frame() is None
    assert memory.used_bytes <= len(crowd) * 8 * 1024
    for intake in crowd:
        intake.close()
    assert memory.used_bytes == 0
    assert memory.join("192.0.2.1").holders == 1, "an address that left is remembered"


def begun(memory: FrameMemory, address: str, size: int, came: int) -> FrameReader:
    """Return a connection that has ended a first frame, and sent some bytes of a large one."""
    intake = FrameReader(SHARED, memory, 100 << 20, address)
    feed(intake, stream_of([bytes(100)]), 104, [])
    data, sent = size.to_bytes(4, "big") + bytes(came - 4), 0
    while sent < came and not intake.is_starved:
        view = intake.buffer()
        count = min(len(view), 50_000, came - sent)
        view[:count] = data[sent : sent + count]
        sent += count
        intake.received(count)
        assert intake.next_frame() is None
    return intake


def test_a_crowd_of_one_address_leaves_memory_to_the_others() -> None:
    memory = FrameMemory(8 << 20, has_shares=True)
    crowd = [begun(memory, "192.0.2.1", 2 << 20, 600_000) for _ in range(40)]
    assert sum(not each.is_starved for each in crowd) < 5
    # Its eighth, one frame beyond that, and one read of each connection that waits.
    assert memory.used_bytes <= (1 << 20) + (2 << 20) + len(crowd) * (64 << 10)
    others = [begun(memory, f"192.0.2.{number}", 2 << 20, 300_000) for number in (2, 3)]
    assert not any(each.is_starved for each in others)
    for each in crowd + others:
        each.close()
    assert memory.used_bytes == 0


def test_lent_buffers_are_bounded_and_an_address_has_half_of_them() -> None:
    memory = FrameMemory(1 << 30, has_shares=True)
    for _ in range(2):
        by_address = [
            [begun(memory, f"192.0.2.{number}", 8 << 20, 300_000) for _ in range(6)]
            for number in range(4)
        ]
        lent = [sum(len(each.buffer()) > 1 << 20 for each in senders) for senders in by_address]
        assert lent == [LENT_COUNT_MAX // 2] * 2 + [0] * 2
        for senders in by_address:
            for each in senders:
                each.close()
