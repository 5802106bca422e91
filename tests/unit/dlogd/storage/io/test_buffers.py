"""The chunk pool: accounting, eviction order, splitting and merging, back-pressure, residency."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from dlogd.storage.io.buffer_pool import LARGE, LARGE_BYTES, SMALL, SMALL_BYTES, BufferPool, Chunk

KIB = 1024


def small_pool(slabs: int = 2, **options: object) -> BufferPool:
    return BufferPool(slabs * 16 * KIB, small_bytes=4 * KIB, large_bytes=16 * KIB, **options)  # type: ignore[arg-type]


def must_take(pool: BufferPool, size_class: int) -> Chunk:
    chunk = pool.take(size_class)
    assert chunk is not None
    return chunk


def test_chunks_are_aligned_and_do_not_overlap() -> None:
    pool = small_pool()
    chunks = [must_take(pool, SMALL) for _ in range(8)]
    assert pool.take(SMALL) is None and pool.take(LARGE) is None
    for i, chunk in enumerate(chunks):
        assert chunk.address % 4096 == 0 and len(chunk.view) == chunk.size == 4 * KIB
        chunk.view[:] = bytes([i]) * chunk.size
    assert [chunk.view[0] for chunk in chunks] == list(range(8))
    assert len({chunk.address for chunk in chunks}) == 8
    usage = pool.usage()
    assert usage.taken_bytes == usage.total_bytes == 32 * KIB
    assert usage.refusals_total == 2 and usage.free_bytes == 0


def test_free_smalls_merge_into_a_large() -> None:
    pool = small_pool()
    smalls = [must_take(pool, SMALL) for _ in range(8)]
    for chunk in smalls:
        pool.give_back(chunk)
    first, second = must_take(pool, LARGE), must_take(pool, LARGE)
    assert pool.take(SMALL) is None
    pool.give_back(first)
    assert must_take(pool, SMALL).size == 4 * KIB
    pool.give_back(second)
    assert pool.take(LARGE) is second


def test_giving_back_twice_is_refused() -> None:
    pool = small_pool()
    for size_class in (SMALL, LARGE):
        chunk = must_take(pool, size_class)
        pool.give_back(chunk)
        with pytest.raises(RuntimeError, match="twice"):
            pool.give_back(chunk)


def test_the_least_recently_used_is_evicted_first() -> None:
    pool = small_pool(1)
    chunks = [must_take(pool, SMALL) for _ in range(4)]
    evicted: list[Chunk] = []
    for chunk in chunks:
        pool.cache(chunk, evicted.append)
    pool.touch(chunks[0])
    pool.retain(chunks[1])
    assert pool.take(SMALL) is chunks[2]
    assert pool.take(SMALL) is chunks[3]
    assert pool.take(SMALL) is chunks[0]
    assert pool.take(SMALL) is None
    assert evicted == [chunks[2], chunks[3], chunks[0]]
    assert pool.usage().evictions_total == 3


def test_a_cached_chunk_keeps_its_bytes_until_evicted() -> None:
    pool = small_pool()
    chunk = must_take(pool, SMALL)
    chunk.view[:3] = b"abc"
    pool.cache(chunk, lambda _: None)
    others = [must_take(pool, SMALL) for _ in range(7)]
    assert bytes(chunk.view[:3]) == b"abc" and pool.usage().cached_bytes == 4 * KIB
    pool.give_back(chunk)
    assert pool.usage().cached_bytes == 0
    assert pool.take(SMALL) is chunk
    assert others


def test_a_large_is_made_of_evictable_smalls_or_of_the_older_large() -> None:
    pool = small_pool(2)
    evicted: list[Chunk] = []
    smalls = [must_take(pool, SMALL) for _ in range(4)]
    large = must_take(pool, LARGE)
    assert pool.take(LARGE) is None
    pool.cache(smalls[0], evicted.append)
    pool.cache(smalls[1], evicted.append)
    pool.give_back(smalls[2])
    assert pool.take(LARGE) is None and not evicted  # one small is still taken
    pool.cache(smalls[3], evicted.append)
    pool.cache(large, evicted.append)
    assert must_take(pool, LARGE).slab is smalls[0].slab
    assert evicted == [smalls[0], smalls[1], smalls[3]]
    assert pool.take(LARGE) is large
    assert pool.take(LARGE) is None


def test_waiters_are_served_in_order_and_before_newcomers() -> None:
    later: list[Callable[[], None]] = []
    pool = small_pool(1, call_soon=later.append)
    large = must_take(pool, LARGE)
    got: list[tuple[str, Chunk | None]] = []

    def wait(name: str, size_class: int) -> None:
        pool.when_available(lambda: got.append((name, pool.take(size_class))), size_class)

    wait("a", SMALL)
    wait("b", SMALL)
    wait("c", LARGE)
    assert not later
    pool.give_back(large)
    assert len(later) == 1 and not got
    assert pool.take(SMALL) is None  # a newcomer while others wait
    later.pop()()
    assert [name for name, chunk in got if chunk is not None] == ["a", "b"]
    assert pool.usage().waiting == 1
    for _, chunk in got:
        assert chunk is not None
        pool.give_back(chunk)
    later.pop()()
    assert got[2][0] == "c" and got[2][1] is large


def test_caching_wakes_waiters() -> None:
    pool = small_pool(1)
    large = must_take(pool, LARGE)
    got: list[Chunk | None] = []
    pool.when_available(lambda: got.append(pool.take(SMALL)))
    pool.cache(large, lambda _: None)
    assert got[0] is not None


def test_waiting_with_memory_at_hand_is_served() -> None:
    pool = small_pool(1)
    called: list[int] = []
    pool.when_available(lambda: called.append(1))
    assert called == [1]


def test_a_raising_waiter_does_not_hold_up_the_others() -> None:
    later: list[Callable[[], None]] = []
    pool = small_pool(1, call_soon=later.append)
    large = must_take(pool, LARGE)
    got: list[Chunk | None] = []

    def fail() -> None:
        raise ValueError("broken waiter")

    pool.when_available(fail)
    pool.when_available(lambda: got.append(pool.take(SMALL)))
    pool.give_back(large)
    with pytest.raises(ValueError, match="broken waiter"):
        later.pop()()
    later.pop()()
    assert got[0] is not None


def test_a_waiter_that_takes_nothing_passes_the_turn_and_never_loops() -> None:
    pool = small_pool(1)
    large = must_take(pool, LARGE)
    calls: list[str] = []

    def again() -> None:
        calls.append("again")
        pool.when_available(again)

    pool.when_available(again)
    pool.when_available(lambda: calls.append("other"))
    pool.give_back(large)
    assert calls == ["again", "other"]


@pytest.mark.parametrize("seed", range(20))
def test_random_use_keeps_the_books_balanced(seed: int) -> None:
    rng = random.Random(seed)
    pool = small_pool(3)
    taken: list[Chunk] = []
    cached: list[Chunk] = []
    for step in range(3000):
        action = rng.random()
        if action < 0.5:
            chunk = pool.take(rng.choice((SMALL, SMALL, SMALL, LARGE)))
            if chunk is not None:
                chunk.view[:8] = step.to_bytes(8, "big")
                assert chunk not in taken and chunk not in cached
                taken.append(chunk)
        elif action < 0.7 and taken:
            pool.give_back(taken.pop(rng.randrange(len(taken))))
        elif action < 0.85 and taken:
            chunk = taken.pop(rng.randrange(len(taken)))
            cached.append(chunk)
            pool.cache(chunk, cached.remove)
        elif action < 0.9 and cached:
            chunk = cached.pop(rng.randrange(len(cached)))
            pool.retain(chunk)
            taken.append(chunk)
        elif cached:
            pool.touch(rng.choice(cached))
        usage = pool.usage()
        assert usage.taken_bytes == sum(chunk.size for chunk in taken)
        assert usage.cached_bytes == sum(chunk.size for chunk in cached)
        spans = sorted((chunk.address, chunk.size) for chunk in taken + cached)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))
    for chunk in taken:
        pool.give_back(chunk)
    larges = [pool.take(LARGE) for _ in range(3)]
    assert None not in larges and not cached


def test_untouched_memory_is_not_resident() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    pool = BufferPool(256 << 20)
    chunks = [must_take(pool, LARGE) for _ in range(256)]
    smalls = [must_take(pool, SMALL) for _ in range(1024)]
    for chunk in chunks:
        chunk.view[0] = 1
    assert resident() - before < 8 << 20
    assert smalls
    pool.close()


def test_what_is_given_back_is_taken_again() -> None:
    pool = BufferPool(8 << 20)
    first = pool.take(SMALL)
    assert first is not None
    pool.give_back(first)
    for _ in range(2000):
        chunk = pool.take(SMALL)
        assert chunk is first
        pool.give_back(chunk)


def test_sizes_must_fit() -> None:
    with pytest.raises(ValueError, match="at least"):
        BufferPool(4096)
    with pytest.raises(ValueError, match="divide"):
        BufferPool(1 << 20, small_bytes=5000)


def test_waiters_that_cannot_be_served_do_not_keep_the_loop_busy() -> None:
    scheduled: list[Callable[[], None]] = []
    pool = BufferPool(LARGE_BYTES, call_soon=scheduled.append)
    chunks = [pool.take(SMALL) for _ in range(LARGE_BYTES // SMALL_BYTES)]
    served: list[int] = []
    pool.when_available(lambda: served.append(1), LARGE)
    pool.when_available(lambda: served.append(2), LARGE)
    assert chunks[0] is not None
    pool.give_back(chunks[0])
    for _ in range(5):
        for callback in scheduled[:]:
            scheduled.remove(callback)
            callback()
    assert (scheduled, served) == ([], [])


def test_who_needs_many_chunks_is_not_called_for_one() -> None:
    pool = BufferPool(16 * KIB, small_bytes=4 * KIB, large_bytes=16 * KIB)
    taken = [pool.take(SMALL) for _ in range(4)]
    calls: list[int] = []
    pool.when_available(lambda: calls.append(1), SMALL, 3 * 4 * KIB)
    for number, chunk in enumerate(taken[:3], 1):
        assert chunk is not None
        pool.give_back(chunk)
        assert len(calls) == (number == 3)
