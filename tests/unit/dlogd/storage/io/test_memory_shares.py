"""Each of several directories has its share of the append memory, and waits for no other's."""

import pytest

from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.buffer_pool import BufferPool
from dlogd.storage.segment.tail_buffer import TailBuffer

SMALL, LARGE = 4096, 16384


def put(tail: TailBuffer, size: int) -> bool:
    return tail.append(memoryview(b"x" * size), size, 0, 0)


def fill(memory: AppendMemory) -> int:
    """Append what is never flushed until there is no memory; return how much that was."""
    tail, count = TailBuffer(memory), 0
    while put(tail, 1000):
        count += 1000
    return count


def shared(slabs: int = 16) -> AppendMemory:
    return AppendMemory(BufferPool(slabs * LARGE, small_bytes=SMALL, large_bytes=LARGE), 1 << 20)


def test_a_directory_has_its_share_of_append_memory_and_no_more() -> None:
    first, second = shared().shares(2)
    assert 0 < fill(first) <= 9 * LARGE  # the last chunk may go beyond
    assert fill(second) > 5 * LARGE


def test_the_only_directory_has_all_of_it() -> None:
    memory = shared()
    assert memory.shares(1) == (memory,)
    assert fill(memory) > 15 * LARGE


def test_a_large_batch_fits_beside_a_share_that_is_smaller() -> None:
    first, *_ = shared().shares(8)
    tail = TailBuffer(first)
    assert put(tail, 6 * LARGE) and not put(tail, LARGE)
    tail.on_flushed(tail.end)
    assert put(tail, LARGE)


def test_who_waits_for_a_share_is_called_when_something_was_flushed() -> None:
    first, second = shared().shares(2)
    tail = TailBuffer(first)
    while put(tail, 4000):
        pass
    called: list[str] = []
    first.when_available(lambda: called.append("first"), 4000)
    second.when_available(lambda: called.append("second"), 4000)
    assert called == ["second"]
    tail.on_flushed(tail.end)
    assert called == ["second", "first"] and put(tail, 4000)


def put_waiting(tail: TailBuffer, memory: AppendMemory, size: int) -> int:
    """Append as a log does; return how often it had to wait for memory that was there."""
    for count in range(5):
        if put(tail, size):
            return count
        called: list[bool] = []
        memory.when_available(lambda: called.append(True), size + tail.kept_bytes)  # noqa: B023
        assert called, "nobody brings memory any more"
    raise AssertionError("It waits for itself")


@pytest.mark.parametrize(("count", "sizes"), [(8, [6 * LARGE + 100, 6 * LARGE]), (64, [5000] * 9)])
def test_no_log_waits_for_memory_that_is_its_own(count: int, sizes: list[int]) -> None:
    first, *_ = shared().shares(count)
    tail = TailBuffer(first)
    for size in sizes:
        assert put_waiting(tail, first, size) <= 1
        tail.on_flushed(tail.end)


def test_who_waits_is_not_called_while_others_hold_what_its_own_chunk_needs() -> None:
    first, _ = shared().shares(2)
    tail, other = TailBuffer(first), TailBuffer(first)
    assert put(tail, LARGE - 100)
    tail.on_flushed(tail.end)
    while first.pool.usage().taken_bytes < 8 * LARGE:
        assert put(other, LARGE)
    called: list[bool] = []
    size = LARGE // 2
    while put(tail, size):
        pass
    first.when_available(lambda: called.append(True), size + tail.kept_bytes)
    assert not called
    other.on_flushed(other.end)
    assert called and put(tail, size)


def test_what_was_flushed_and_is_appended_to_again_counts_for_the_share() -> None:
    first, second = shared().shares(2)
    tails = []
    for _ in range(2):
        for _ in range(8):
            tails.append(TailBuffer(first))
            assert put(tails[-1], 5000)
            tails[-1].on_flushed(tails[-1].end)
        first._release_clean(8)
    while any([put(tail, 100) for tail in tails]):
        pass
    assert first.pool.usage().taken_bytes <= 9 * LARGE
    assert put(TailBuffer(second), 5000)
