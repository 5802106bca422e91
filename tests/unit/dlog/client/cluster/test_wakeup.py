"""A flag for one waiter: no wake-up is lost, none comes twice, time-outs end."""

import asyncio

import pytest

from dlog.client.cluster.wakeup import Signal


def test_a_signal_before_the_wait_is_not_lost_and_counts_once() -> None:
    async def main() -> None:
        signal = Signal(asyncio.get_running_loop())
        signal.set()
        signal.set()
        assert await signal.wait(0)
        assert not await signal.wait(0)

    asyncio.run(main())


def test_a_waiter_is_woken() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        signal = Signal(loop)
        loop.call_soon(signal.set)
        loop.call_soon(signal.set)
        assert await signal.wait()
        assert not await signal.wait(0)

    asyncio.run(main())


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        signal = Signal(loop)
        task = loop.create_task(signal.wait())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already waits"):
            await signal.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        signal.set()
        assert await signal.wait(0)

    asyncio.run(main())
