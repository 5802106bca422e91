"""Watch of a controller over leases: time, probes, proofs of its authority.

Made when this node has become controller, stopped when it no longer is. It decides nothing:
`on_change` says that `table.liveness` is worth the planner's look.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from dlog.transport import Address
from dlog.types import NodeId
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.leases import Condemned, LeaseTable, Probed, ProbeOrder
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.prober import Prober
from dlogd.metadata.state.image import NodeRegistration
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_Seen = tuple[Condemned | None, bool, bool, bool]


class LeaseWatch:
    """Keeps one `LeaseTable` going. Owner: the event loop's thread. Life: `start`, then `stop`."""

    def __init__(
        self,
        table: LeaseTable,
        service: LivenessService,
        prober: Prober,
        timings: LeaseTimings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        tasks: Tasks,
        address: Callable[[NodeId], Address | None],
        prove: Callable[[], Awaitable[bool]] | None,
        on_change: Callable[[], None],
    ) -> None:
        """`prove()` returns True when this node surely led Raft at some moment since the call.

        A barrier through the log is such a proof, a round of Raft's own heartbeats too; None when
        somebody calls `table.on_contact` himself.
        """
        self.table = table
        self._service = service
        self._prober = prober
        self._timings = timings
        self._loop = loop
        self._clock = clock
        self._tasks = tasks
        self._address = address
        self._prove = prove
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._own: dict[str, asyncio.Task[None]] = {}
        self._seen: dict[NodeId, _Seen] = {}

    async def start(self) -> None:
        """Grant leases and watch them from now on."""
        self._service.on_event = self._wake.set
        self._service.lead(self.table)
        self._spawn("lease-watch", self._watch(), is_vital=True)
        if self._prove is not None:
            self._spawn("lease-authority", self._prove_again(self._prove), is_vital=True)

    async def stop(self) -> None:
        """Grant nothing any more; what was granted holds until it has run out."""
        self._service.resign()
        self._service.on_event = None
        own = list(self._own.values())
        for task in own:
            task.cancel()
        if own:
            await asyncio.wait(own)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None], *, is_vital: bool = False) -> None:
        task = self._own[name] = self._tasks.spawn(name, work, is_vital=is_vital)
        task.add_done_callback(lambda _: self._own.pop(name, None))

    def on_image(self, nodes: Mapping[NodeId, NodeRegistration], version: int) -> None:
        """Follow a newer image."""
        self.table.on_image(nodes, version, self._clock.now_ms())
        self._wake.set()

    # -- time

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            now_ms = self._clock.now_ms()
            self.table.poll(now_ms)
            for order in self.table.take_probes(now_ms):
                self._spawn(f"probe {order.node_id} {order.number}", self._probe(order))
            self._tell(now_ms)
            pause_ms = self._timings.heartbeat_ms // 2 + 1
            due_ms = self.table.next_probe_ms()
            if due_ms is not None:
                pause_ms = min(pause_ms, max(1, due_ms - now_ms))
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _tell(self, now_ms: int) -> None:
        seen: dict[NodeId, _Seen] = {}
        for node_id, known in self.table.liveness(now_ms).items():
            seen[node_id] = (
                known.condemned,
                known.caught_up,
                known.wants_shutdown,
                known.suspected,
            )
            before = self._seen.get(node_id)
            if known.condemned is not None and (before is None or before[0] is None):
                is_orderly = known.condemned is Condemned.SURRENDERED
                log.log(
                    logging.INFO if is_orderly else logging.WARNING,
                    "Gave up a node node=%d node_epoch=%d reason=%s",
                    node_id,
                    known.node_epoch,
                    known.condemned.value,
                )
        if seen != self._seen:
            self._seen = seen
            self._on_change()

    # -- probes and proofs

    async def _probe(self, order: ProbeOrder) -> None:
        address = self._address(order.node_id)
        result: tuple[Probed, int | None] = (Probed.SILENT, None)
        if address is not None:
            result = await self._prober.probe(order, address)
        self.table.on_probe(order, result[0], self._clock.now_ms(), result[1])
        self._wake.set()

    async def _prove_again(self, prove: Callable[[], Awaitable[bool]]) -> None:
        while True:
            begun_ms = self._clock.now_ms()
            if await prove():
                self.table.on_contact(begun_ms)
            spent_ms = self._clock.now_ms() - begun_ms
            await asyncio.sleep(max(1, self._timings.proof_pause_ms - spent_ms) / 1000)
