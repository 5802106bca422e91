"""Who tells a client that its records are kept holds a lease at that moment: otherwise somebody
else may lead already, whatever this node has heard (`AcknowledgedUnderLease`, H11).
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dlogd.server.handlers.produce import ProduceWork, SingleProduce
from tests.simulation.loop import SimLoop


class AckWatch:
    """Looks at each acknowledgement. `registry` takes violations."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See all acknowledgements for a while."""
        with ExitStack() as stack:
            for owner in (ProduceWork, SingleProduce):
                stack.enter_context(
                    mock.patch.object(owner, "on_acked", self._watched(owner.on_acked))
                )
            yield

    def _watched(self, on_acked: Callable[..., Any]) -> Callable[..., Any]:
        def watched(waiter: Any, index: int, error: Any, now_us: int) -> Any:
            if error is None:
                self._look()
            return on_acked(waiter, index, error, now_us)

        return watched

    def _look(self) -> None:
        loop = asyncio.events._get_running_loop()
        host = self._registry.hosts.get(loop.address) if isinstance(loop, SimLoop) else None
        if host is not None and not host.holds_lease():
            self._registry.violate(f"AcknowledgedUnderLease: node {host.node_id} has none")
