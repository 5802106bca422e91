"""A loop on a thread of its own, closed while others wait for it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from dlog.client.cluster.loop_thread import LoopThread
from dlog.errors import DlogError


def outcome_of(call: Callable[[], object]) -> tuple[threading.Thread, list[Exception]]:
    """Call on a thread; note what it raises."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except DlogError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_who_waits_for_a_call_hears_of_the_end() -> None:
    loop_thread = LoopThread("tested")
    loop_thread.start()
    has_begun = threading.Event()

    async def endless() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    caller, raised = outcome_of(lambda: loop_thread.call(endless))
    assert has_begun.wait(10)
    loop_thread.close()
    caller.join(10)
    assert not caller.is_alive()
    assert [type(each) for each in raised] == [DlogError]
    assert "closed" in str(raised[0])


def test_what_ends_in_order_at_the_close_is_waited_for() -> None:
    loop_thread = LoopThread("tested")
    loop_thread.start()
    ended: list[str] = []

    async def begin() -> None:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("in order")

        task = asyncio.get_running_loop().create_task(work())
        await asyncio.sleep(0)
        tasks.append(task)

    tasks: list[Awaitable[None]] = []
    loop_thread.call(begin)
    loop_thread.close()
    assert ended == ["in order"]


def test_a_call_from_its_own_thread_is_refused() -> None:
    loop_thread = LoopThread("tested")
    loop_thread.start()

    async def nothing() -> None:
        pass

    async def calls() -> None:
        with pytest.raises(DlogError, match="own thread"):
            loop_thread.call(nothing)

    loop_thread.call(calls)
    loop_thread.close()


def test_threads_that_close_at_once_all_return() -> None:
    loop_thread = LoopThread("tested")
    loop_thread.start()
    closers = [outcome_of(loop_thread.close) for _ in range(5)]
    for thread, raised in closers:
        thread.join(10)
        assert not thread.is_alive() and raised == []
    assert not loop_thread.is_open


def test_a_close_on_its_own_thread_is_refused() -> None:
    loop_thread = LoopThread("tested")
    loop_thread.start()

    async def close() -> None:
        with pytest.raises(DlogError, match="own thread"):
            loop_thread.close()

    loop_thread.call(close)
    loop_thread.close()
