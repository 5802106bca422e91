"""Frames come out of the byte stream whole, however the stream is cut."""

import random

import pytest

from dlog.errors import ProtocolError
from dlogd.server.intake import RECEIVE_BYTES, FrameMemory, Intake

SHARED = bytearray(RECEIVE_BYTES)


def frames_of(sizes: list[int], rng: random.Random) -> list[bytes]:
    return [rng.randbytes(size) for size in sizes]


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def drain(intake: Intake, out: list[bytes]) -> None:
    while (frame := intake.next_frame()) is not None:
        buffer, start, end = frame
        out.append(bytes(buffer[start:end]))


def feed(intake: Intake, data: bytes, cut: int, out: list[bytes]) -> None:
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
    intake = Intake(SHARED, memory, 100 << 20)
    out: list[bytes] = []
    feed(intake, stream_of(frames), cut, out)
    assert out == frames
    assert not intake.is_mid_frame
    intake.close()
    assert memory.used_bytes == 0


@pytest.mark.parametrize("size", [-1, 0, 7, 1001, 2**31 - 1])
def test_impossible_lengths_are_refused(size: int) -> None:
    intake = Intake(SHARED, FrameMemory(1 << 20), 1000)
    view = intake.buffer()
    view[:4] = (size & 0xFFFFFFFF).to_bytes(4, "big")
    intake.received(4)
    with pytest.raises(ProtocolError, match=r"frame of -?\d+ bytes is outside 8..1000"):
        intake.next_frame()


def test_memory_follows_what_arrived_not_what_was_promised() -> None:
    memory = FrameMemory(1 << 30)
    intake = Intake(SHARED, memory, 100 << 20)
    feed(intake, (90 << 20).to_bytes(4, "big") + bytes(100_000), 4096, [])
    assert intake.is_mid_frame
    assert memory.used_bytes <= 2 << 20
    intake.close()
    assert memory.used_bytes == 0


def test_a_large_frame_waits_for_memory_and_goes_on() -> None:
    memory = FrameMemory(2 << 20)
    first, second = (Intake(SHARED, memory, 100 << 20) for _ in range(2))
    frame = random.Random(1).randbytes(100_000)
    data = stream_of([frame])
    out: list[bytes] = []
    feed(first, data[:70_000], 70_000, out)
    feed(second, data[:70_000], 70_000, out)
    assert not first.is_starved
    assert second.is_starved
    woken: list[bool] = []

    def retry() -> bool:
        woken.append(True)
        return second.retry()

    memory.when_available(retry, grows=False)
    feed(first, data[70_000:], 30_004, out)
    assert woken == [True]
    assert not second.is_starved
    feed(second, data[70_000:], 30_004, out)
    assert out == [frame, frame]


def test_a_held_frame_outlives_the_shared_buffer() -> None:
    frames = frames_of([50, 60, 70], random.Random(2))
    intake = Intake(SHARED, FrameMemory(1 << 20), 1 << 20)
    other = Intake(SHARED, FrameMemory(1 << 20), 1 << 20)
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
    intake = Intake(SHARED, FrameMemory(1 << 20), 1 << 20)
    other = Intake(SHARED, FrameMemory(1 << 20), 1 << 20)
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
