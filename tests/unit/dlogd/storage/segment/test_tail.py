"""Memory of segments' tails: copies, patches, what is written, what may be evicted, who waits."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.batch.header import BATCH_STRUCT
from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.buffer_pool import BufferPool
from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.segment.tail_buffer import TailBuffer

SMALL, LARGE = 4096, 16384


def memory(slabs: int = 4) -> AppendMemory:
    return AppendMemory(BufferPool(slabs * LARGE, small_bytes=SMALL, large_bytes=LARGE), 1 << 20)


def batch(number: int, size: int) -> bytes:
    """Return bytes of the size of a batch, whose first 16 the tail may patch."""
    assert size >= 61
    return bytes([number % 251]) * size


def patched(number: int, size: int) -> bytes:
    data = bytearray(batch(number, size))
    data[0:8] = number.to_bytes(8, "big")
    data[8:12] = (size - 12).to_bytes(4, "big")
    data[12:16] = (7).to_bytes(4, "big")
    return bytes(data)


def put(tail: TailBuffer, number: int, size: int) -> bool:
    return tail.append(memoryview(batch(number, size)), size, number, 7)


@given(st.lists(st.integers(61, 9000), min_size=1, max_size=12), st.integers(0, 9000))
def test_batches_are_copied_and_patched_wherever_they_fall(sizes: list[int], start: int) -> None:
    prefix = b"p" * (start % ALIGNMENT)
    tail = TailBuffer(memory(16), start, prefix)
    expected = prefix
    for number, size in enumerate(sizes):
        assert put(tail, number, size)
        expected += patched(number, size)
    begin = start - len(prefix)
    assert tail.end == begin + len(expected)
    assert tail.copy(begin, len(expected)) == expected
    assert b"".join(tail.buffers(begin, tail.end)) == expected
    position = start
    for number, size in enumerate(sizes):
        assert tail.batch_fields(position) == BATCH_STRUCT.unpack_from(patched(number, size))
        position += size
    assert tail.batch_fields(position) is None


def test_blocks_are_aligned_and_padded_with_zeros() -> None:
    shared = memory()
    tail = TailBuffer(shared, 5000, b"q" * (5000 - 4096))
    put(tail, 3, 1000)
    for buffer in tail.buffers(4096, 4096 + 1904):
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % ALIGNMENT == 0
    block = shared.take_block()
    assert block is not None
    block[:] = b"\xff" * ALIGNMENT
    tail.fill_block(block, tail.end)
    assert bytes(block) == b"q" * 904 + patched(3, 1000) + bytes(ALIGNMENT - 1904)
    assert ctypes.addressof(ctypes.c_char.from_buffer(block)) % ALIGNMENT == 0


def test_a_block_in_flight_does_not_change() -> None:
    """What goes to the disk is a copy: appends meanwhile must not reach it in part."""
    shared = memory()
    tail = TailBuffer(shared)
    put(tail, 1, 100)
    block = shared.take_block()
    assert block is not None
    tail.fill_block(block, 100)
    before = bytes(block)
    put(tail, 2, 100)
    assert bytes(block) == before


def test_quiet_partitions_take_small_chunks_and_busy_ones_large() -> None:
    quiet, busy = TailBuffer(memory()), TailBuffer(memory())
    put(quiet, 1, 100)
    assert quiet.memory_bytes == SMALL
    for number in range(60):
        put(busy, number, 100)  # nothing is flushed meanwhile
    assert busy.memory_bytes == SMALL + LARGE
    for number in range(60):
        put(quiet, number, 100)
        quiet.on_flushed(quiet.end)
    assert quiet.memory_bytes == 2 * SMALL


def test_nothing_unflushed_is_ever_evicted() -> None:
    shared = memory(2)
    tail = TailBuffer(shared)
    count = 0
    while put(tail, count, 1000):
        count += 1
    assert count >= 2 * LARGE // 1000 - 5
    assert b"".join(tail.buffers(0, tail.end)) == b"".join(patched(n, 1000) for n in range(count))


def test_flushed_chunks_are_a_cache_until_somebody_needs_them() -> None:
    shared = memory(4)
    first, second = TailBuffer(shared), TailBuffer(shared)
    for number in range(40):
        assert put(first, number, 1000)
    first.on_flushed(first.end)
    assert first.copy(0, 1000) == patched(0, 1000)
    before = first.memory_bytes
    count = 0
    while put(second, count, 1000):
        count += 1
    assert first.memory_bytes == 0 < before
    assert first.copy(0, 1000) is None
    assert first.memory_view(0, 10) is None
    # The first goes on where it ended although its last chunk may be gone.
    second.on_flushed(second.end)
    for number in range(30):
        assert put(first, number, 1000)
    assert first.copy(40_000, 1000) == patched(0, 1000)
    assert first.copy(39_000, 1000) == patched(39, 1000), "the last partial block was kept"


def test_a_clean_tail_gives_its_last_chunk_only_when_needed() -> None:
    shared = memory(1)
    idle = TailBuffer(shared)
    put(idle, 1, 100)
    idle.on_flushed(100)
    others = [TailBuffer(shared) for _ in range(4)]
    assert all(put(tail, 1, 100) for tail in others)
    assert idle.memory_bytes == 0
    assert not put(idle, 2, 100), "the others are not flushed"
    others[0].on_flushed(100)
    assert put(idle, 2, 100)
    assert b"".join(idle.buffers(0, 200)) == patched(1, 100) + patched(2, 100)


def test_who_waits_for_memory_is_called_when_tails_become_clean() -> None:
    shared = memory(1)
    tails = [TailBuffer(shared) for _ in range(4)]
    assert all(put(tail, 1, 100) for tail in tails)
    late = TailBuffer(shared)
    assert not put(late, 1, 100)
    called: list[bool] = []
    shared.when_available(lambda: called.append(put(late, 1, 100)), 100)
    assert not called
    for tail in tails:
        tail.on_flushed(100)
    assert called == [True]


def test_partly_taken_memory_is_given_back() -> None:
    shared = memory(2)
    tail = TailBuffer(shared)
    put(tail, 1, 100)
    before = shared.pool.usage().taken_bytes
    big = TailBuffer(shared)
    assert not put(big, 1, 2 * LARGE)
    assert shared.pool.usage().taken_bytes == before
    assert big.memory_bytes == 0 and big.end == 0


def test_reset_gives_everything_back() -> None:
    shared = memory(2)
    tail = TailBuffer(shared)
    for number in range(20):
        put(tail, number, 1000)
    tail.on_flushed(9000)
    tail.reset(4196, b"z" * 100)
    assert shared.pool.usage().taken_bytes == shared.pool.usage().cached_bytes == 0
    put(tail, 5, 61)
    assert tail.copy(4096, 161) == b"z" * 100 + patched(5, 61)
    with pytest.raises(AssertionError):
        tail.reset(5000, b"")


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(61, 6000), st.integers(0, 100)),
        min_size=1,
        max_size=60,
    )
)
def test_tails_never_show_wrong_bytes(steps: list[tuple[int, int, int]]) -> None:
    """Three tails share too little memory; each keeps a list of what it holds."""
    shared = memory(2)
    tails = [TailBuffer(shared) for _ in range(3)]
    held = [b"", b"", b""]
    flushed = [0, 0, 0]
    for number, (which, size, share) in enumerate(steps):
        tail = tails[which]
        if put(tail, number, size):
            held[which] += patched(number, size)
        if share < 60:
            flushed[which] += (tail.end - flushed[which]) * share // 59
            tail.on_flushed(flushed[which])
        for other, data in enumerate(held):
            assert tails[other].end == len(data)
            start = flushed[other] // ALIGNMENT * ALIGNMENT
            if flushed[other] < len(data):
                assert b"".join(tails[other].buffers(start, len(data))) == data[start:]
            for position in range(0, len(data), 997):
                view = tails[other].memory_view(position, 5000)
                if view is not None:
                    assert view == data[position : position + len(view)]
