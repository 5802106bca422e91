"""Runs of scenarios on a loop of their own, bounded in time."""

import asyncio
from collections.abc import Awaitable, Callable


def check(work: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario for at most 20 s."""

    async def bounded() -> None:
        await asyncio.wait_for(work(), 20)

    asyncio.run(bounded())
