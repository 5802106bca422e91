"""Page /metrics, computed at most once a second.

Scrapes that come while the page is computed wait for it and share it, and so do those that come
within a second after that. `load` brings in the collector, which costs 50 ms of imports; the
service calls it at the start, so that no scrape waits for them.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

from dlogd.status.http_heads import Request, Response

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]

COLLECTOR_MODULE = "dlogd.telemetry.collector"
KEPT_S = 1.0


class Scrapes:
    """The last exposition of a node's metrics, and how the next one is made.

    Owner: the event loop's thread.
    """

    def __init__(self, collect: Callable[[Any], Any], run_blocking: RunBlocking) -> None:
        """`collect(module)` returns a collector of the collector's module."""
        self._collect = collect
        self._run_blocking = run_blocking
        self._module: Any = None
        self._lock = asyncio.Lock()
        self._kept: Response | None = None
        self._kept_until_s = 0.0

    async def load(self) -> None:
        """Import the collector, not on the loop. Idempotent."""
        async with self._lock:
            await self._load()

    async def _load(self) -> None:
        if self._module is None:
            self._module = await self._run_blocking(
                lambda: importlib.import_module(COLLECTOR_MODULE)
            )

    async def page(self, _request: Request) -> Response:
        """Answer in Prometheus' text format."""
        now_s = asyncio.get_running_loop().time
        # A scrape that is cancelled leaves the lock; the next one begins again.
        async with self._lock:
            if self._kept is None or now_s() >= self._kept_until_s:
                await self._load()
                body = await self._collect(self._module).exposition()
                self._kept = Response(body=body, content_type=self._module.CONTENT_TYPE)
                self._kept_until_s = now_s() + KEPT_S
            return self._kept
