"""Blocking client, for programs without an event loop.

Each call of an `Admin` or a `BlockingClient` runs a private loop until it is done. No thread:
nothing happens between calls, so a connection may have been closed meanwhile; the next call opens
another. A `Producer` has to send between calls, and a `Consumer` reads ahead: each on a thread of
its own.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from dlog.client import admin
from dlog.client.blocking_admin import BlockingAdmin as Admin
from dlog.client.blocking_consumer import BlockingConsumer as Consumer
from dlog.client.blocking_producer import BlockingProducer as Producer
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.loop_thread import up_to_date
from dlog.client.retry import RetryPolicy
from dlog.transport import Address, ConnectionOptions

__all__ = ["Admin", "BlockingClient", "Consumer", "Producer"]

T = TypeVar("T")


class BlockingClient:
    """A cluster's calls, one at a time. Owner: one thread. Life: a `with` block."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        rng: random.Random | None = None,
        options: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._runner = asyncio.Runner()
        self._is_closed = False
        self.cluster = Cluster(
            bootstrap,
            loop=self._runner.get_loop(),
            rng=rng or random.Random(),
            options=options,
            policy=policy,
        )
        self.admin = admin.Admin(self.cluster)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the coroutine that `work` makes returns."""
        return self._runner.run(up_to_date(work))

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._runner.run(self.cluster.close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()
