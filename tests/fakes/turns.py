"""How often others get their turn while something works."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def turns_beside(work: Awaitable[T]) -> tuple[T, int]:
    """Return what `work` returns, and how many turns another task got beside it."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    try:
        return await work, turns
    finally:
        task.cancel()
