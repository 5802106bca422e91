"""Keeper of this node's lease: heartbeats to the controller, and their answers.

The controller's node keeps its own lease the same way, by a connection to itself. Whether the lease
is valid is `OwnLease.is_valid` at any moment; the callbacks here only say when to look.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from dlog.errors import ProtocolError, TransportError, error_for
from dlog.transport import Address, ConnectionOptions
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.own_lease import Grant, OwnLease
from dlogd.internal import messages
from dlogd.internal.messages import Heartbeat, HeartbeatAnswer
from dlogd.internal.node_channel import Dialler, NodeChannel
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Rng
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)


@dataclass(slots=True)
class KeeperCounters:
    """What happened since the start; plain values that metrics read."""

    sent_total: int = 0
    granted_total: int = 0
    failed_total: int = 0  # no answer, or nobody to ask
    lost_total: int = 0  # leases that ended


class LeaseKeeper:
    """Sends heartbeats. Owner: the event loop's thread. Life: `start`, then `stop` once."""

    def __init__(
        self,
        lease: OwnLease,
        timings: LeaseTimings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        rng: Rng,
        tasks: Tasks,
        controller: Callable[[], Address | None],
        heartbeat: Callable[[int], Heartbeat],
        options: ConnectionOptions | None = None,
        dialler: Dialler | None = None,
    ) -> None:
        """`heartbeat(sequence)` says what to tell; `controller()` whom, None when nobody is."""
        self.counters = KeeperCounters()
        self.on_change: Callable[[bool], None] | None = None
        """Called with True after a lease began, with False after it ended."""
        self.on_answer: Callable[[HeartbeatAnswer], None] | None = None
        self._lease = lease
        self._timings = timings
        self._loop = loop
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._controller = controller
        self._heartbeat = heartbeat
        # A controller that hangs must not cost the lease: after a third of it, connect anew.
        answer_s = timings.lease_ms / 3000
        self._options = replace(
            options or ConnectionOptions(client_id=messages.CLIENT_ID),
            connect_timeout_s=answer_s,
            request_timeout_s=answer_s,
            inflight_max=1,
            frame_bytes_max=64 * 1024,
        )
        self._dialler = dialler or Dialler(loop)
        self._connection: NodeChannel | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._valid = False
        self._timer: asyncio.TimerHandle | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the last heartbeat brought no lease, None when it did."""
        return self._problem

    async def start(self) -> None:
        """Begin to send heartbeats."""
        self._task = self._tasks.spawn("lease", self._run(), is_vital=True)

    async def stop(self) -> None:
        """Send no more. The lease ends by itself; `surrender` before is quicker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._timer is not None:
            self._timer.cancel()
        self._disconnect()

    def beat_now(self) -> None:
        """Send the next heartbeat at once: there is something to tell or to hope for."""
        self._wake.set()

    def on_controller_changed(self) -> None:
        """Ask anew whom to send to; an answer of the earlier one is not waited for."""
        self._disconnect()
        self._wake.set()

    def revoke(self) -> None:
        """End the lease now: this node has learnt that it was fenced or replaced."""
        self._lease.revoke()
        self._look()

    def surrender(self) -> None:
        """Give the lease up for the rest of this life, and tell the controller."""
        self._lease.surrender()
        self._look()
        self._wake.set()

    # -- heartbeats

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                pause_ms = float(self._timings.heartbeat_ms)
                if not await self._beat():
                    # Not all nodes at once, when a controller has gone.
                    pause_ms *= self._rng.uniform(0.1, 0.5)
                await self._pause(pause_ms / 1000)
        finally:
            self._disconnect()

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _beat(self) -> bool:
        """Send one heartbeat; return whether somebody who is controller answered."""
        try:
            connection = await self._connect()
            if connection is None:
                return self._fail("no controller is known")
            answer = messages.decode_heartbeat_answer(await connection.call(self._encode))
        except (TransportError, ProtocolError) as error:
            self._disconnect()
            return self._fail(str(error))
        self._take(answer)
        if self.on_answer is not None:
            self.on_answer(answer)
        return answer.error_code == messages.NONE

    def _fail(self, problem: str) -> bool:
        self.counters.failed_total += 1
        self._problem = problem
        return False

    async def _connect(self) -> NodeChannel | None:
        address = self._controller()
        connection = self._connection
        if connection is not None and connection.is_open and connection.address == address:
            return connection
        self._disconnect()
        if address is None:
            return None
        connection = await self._dialler.connect(address, self._options)
        if self._controller() != address:  # it changed while we were connecting
            connection.close()
            return None
        self._connection = connection
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _encode(self, correlation_id: int) -> bytes:
        # Called when the heartbeat leaves: the lease counts from here.
        sequence = self._lease.on_send(self._clock.now_ms())
        self.counters.sent_total += 1
        return messages.encode_heartbeat(self._heartbeat(sequence), correlation_id)

    def _take(self, answer: HeartbeatAnswer) -> None:
        lease = self._lease
        if answer.error_code == messages.NONE and answer.lease_ms > 0:
            self.counters.granted_total += 1
            self._problem = None
            lease.on_grant(
                Grant(
                    sequence=answer.sequence,
                    node_epoch=answer.node_epoch,
                    controller_epoch=answer.controller_epoch,
                    lease_ms=answer.lease_ms,
                )
            )
        else:
            code = answer.error_code
            why = "yet" if code == messages.NONE else f"({error_for(code).name})"
            self._problem = f"the controller grants no lease {why}"
            lease.on_refusal(answer.sequence, answer.controller_epoch, fenced=answer.fenced)
        self._look()

    # -- beginning and end of the lease

    def _look(self) -> None:
        """Tell of a change, and look again when the present lease would end."""
        now_ms = self._clock.now_ms()
        valid = self._lease.is_valid(now_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if valid:
            delay_s = (self._lease.valid_until_ms - now_ms) / 1000
            self._timer = self._loop.call_later(delay_s, self._look)
        if valid is self._valid:
            return
        self._valid = valid
        if valid:
            log.info("Lease began node_epoch=%d", self._lease.node_epoch)
        else:
            self.counters.lost_total += 1
            log.log(
                logging.INFO if self._lease.surrendered else logging.WARNING,
                "Lease ended node_epoch=%d problem=%r",
                self._lease.node_epoch,
                self._problem,
            )
        if self.on_change is not None:
            self.on_change(valid)
