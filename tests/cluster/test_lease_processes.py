"""Leases between real processes: killed at once, stopped for longer than the lease."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dlog.transport import Address, ConnectionOptions
from dlog.types import NodeId
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.lease_watch import LeaseWatch
from dlogd.controller.leases import Condemned, LeaseTable
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.own_lease import OwnLease
from dlogd.controller.prober import Prober
from dlogd.internal.messages import Probe
from dlogd.internal.node_listener import NodeListener
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.tasks import Tasks
from tests.fakes.lease_cluster import registration

TIMINGS = LeaseTimings()
NODE = NodeId(2)


class Controller:
    """A controller in this process, and one node in another."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = SystemClock()
        self.tasks = Tasks()
        self.changed = asyncio.Event()
        self.service = LivenessService(
            NodeId(1), OwnLease(), clock=self.clock, cluster_id=lambda: "c", image_version=lambda: 1
        )
        self.server = NodeListener(self.loop, self.service, idle_timeout_s=10)
        self.child_port = 0

    async def start(self) -> asyncio.subprocess.Process:
        port = await self.server.start("127.0.0.1", 0)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.cluster.lease_child", "2", str(port)),
            stdout=asyncio.subprocess.PIPE,
        )
        self.child_port = int((await self.line(child)).split()[1])
        table = LeaseTable(TIMINGS, 1, {NODE: registration(2, 1)}, 1, self.clock.now_ms())
        prober = Prober(
            self.loop,
            lambda: Probe(cluster_id="c", node_id=NodeId(1), controller_epoch=1),
            timeout_s=TIMINGS.probe_timeout_ms / 1000,
            options=ConnectionOptions(client_id="probe"),
        )

        async def prove() -> bool:
            return True

        self.watch = LeaseWatch(
            table,
            self.service,
            prober,
            TIMINGS,
            loop=self.loop,
            clock=self.clock,
            tasks=self.tasks,
            address=lambda _: Address("127.0.0.1", self.child_port),
            prove=prove,
            on_change=self.changed.set,
        )
        await self.watch.start()
        assert await self.line(child) == "lease True"
        return child

    async def line(self, child: asyncio.subprocess.Process) -> str:
        assert child.stdout is not None
        return (await asyncio.wait_for(child.stdout.readline(), 30)).decode().strip()

    async def until_condemned(self) -> tuple[Condemned, int]:
        """Return why the node was given up, and after how many milliseconds."""
        begin_ms = self.clock.now_ms()
        while True:
            known = self.watch.table.liveness(self.clock.now_ms())[NODE]
            if known.condemned is not None:
                return known.condemned, self.clock.now_ms() - begin_ms
            self.changed.clear()
            await self.changed.wait()

    async def stop(self) -> None:
        await self.watch.stop()
        await self.server.stop()
        await self.tasks.close()


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Controller, asyncio.subprocess.Process]]:
    controller = Controller()
    child = await controller.start()
    try:
        yield controller, child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await controller.stop()


def run(work: Callable[[], object]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)  # type: ignore[arg-type]

    asyncio.run(bounded())


def test_a_killed_process_is_given_up_in_well_under_a_second() -> None:
    async def work() -> None:
        async with running() as (controller, child):
            child.kill()
            why, taken_ms = await controller.until_condemned()
            assert why is Condemned.REFUSED
            assert taken_ms < 800
            print(f"given up after {taken_ms} ms")

    run(work)


def test_a_stopped_process_is_given_up_by_its_lease_and_knows_when_it_wakes() -> None:
    async def work() -> None:
        async with running() as (controller, child):
            child.send_signal(signal.SIGSTOP)
            why, taken_ms = await controller.until_condemned()
            assert why is Condemned.EXPIRED
            assert taken_ms > TIMINGS.lease_ms - 2 * TIMINGS.heartbeat_ms
            child.send_signal(signal.SIGCONT)
            assert await controller.line(child) == "lease False"

    run(work)
