"""A host of a cluster and the real broker on it, with its Raft store in sight of the checks."""

import asyncio
from collections.abc import Callable
from typing import Any

from dlog.errors import (
    BrokerNotAvailableError,
    NotControllerError,
    RequestTimedOutError,
)
from dlogd.config.load import load_config
from dlogd.metadata.raft.store import RaftStore
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.node.broker import Broker
from dlogd.node.cluster_node import FAREWELL_S
from tests.fakes.disk import Machine, Process
from tests.fakes.randomness import SeededRandomness
from tests.simulation.cluster import Host
from tests.simulation.fleet.plan import SECRET_DIRECTORY, FleetPlan, address_of
from tests.simulation.loop import NS, SimClock, SimLoop, World
from tests.simulation.network import Network
from tests.simulation.trace import Trace

SECRET = b"5Ou0zTq1mVbYJp8wC3xKQg=="
# What a start without a quorum ends with; the service manager tries again.
NO_QUORUM = (BrokerNotAvailableError, NotControllerError, RequestTimedOutError)


def _ignore(_: int) -> None:
    """Nobody asked to be told."""


class FleetHost(Host):
    """One host. `store` is its Raft store, None while none is open."""

    plan: FleetPlan
    history: Any

    def __init__(
        self,
        node_id: int,
        plan: FleetPlan,
        world: World,
        network: Network,
        trace: Trace,
        registry: Any,
    ) -> None:
        self.node_id = node_id
        super().__init__(
            plan,
            load_config(plan.yaml(node_id), {}),
            world,
            network,
            trace,
            registry,
            name=f"n{node_id}",
            address=address_of(node_id),
        )
        self.store: RaftStore | None = None
        self.is_wiped = False  # a voter whose directory is not replaced yet
        self.wipes = 0
        self._knew: frozenset[int] = frozenset()  # when it went down
        self.on_power_cut: Callable[[int], None] = _ignore  # told before its power is gone
        self.on_down: Callable[[int], None] = _ignore  # told when its process has ended
        self.unstuck_ns = -NS * 1_000  # when a disk or process that had hung went on

    # -- life

    def _new_machine(self) -> Machine:
        machine = super()._new_machine()
        folder = machine.boot().open_directory(SECRET_DIRECTORY)
        file = folder.open("secret", create=True)
        file.pwrite(SECRET, 0)
        file.sync()
        folder.sync()
        file.close()
        machine.crash()
        return machine

    def _drift_ppm(self) -> int:
        return self.plan.drifts_ppm[self.node_id - 1]

    def _new_broker(self, loop: SimLoop, process: Process, clock: SimClock) -> Broker:
        open_quorum = ThreadedRaftStore.open if self.plan.threads else RaftStore.open
        return Broker(
            self.config,
            loop=loop,
            clock=clock,
            randomness=SeededRandomness(self.rng.getrandbits(64)),
            open_directory=process.open_directory,
            engine=process.engine,
            on_failure=lambda reason: self._on_failure(loop, reason),
            open_quorum=open_quorum,
        )

    def _is_excused(self, error: BaseException) -> bool:
        return super()._is_excused(error) or isinstance(error, NO_QUORUM)

    def _may_hang(self) -> bool:
        # What is not closed is said when the disks go on no earlier than just before the time-out,
        # or when the process does, and has its farewell to say yet (seed 233798).
        just_before_ns = self.config.shutdown.timeout_ms * NS // 1_000 // 10
        just_before_ns += int(FAREWELL_S * NS)
        stuck = any(disk.stuck for disk in self.machine.disks.values())
        return super()._may_hang() or stuck or self.world.now_ns - self.unstuck_ns < just_before_ns

    def _continue(self, loop: SimLoop, pause_number: int) -> None:
        super()._continue(loop, pause_number)
        if loop is self.loop and not self.is_paused:
            self.unstuck_ns = self.world.now_ns  # the time of a stop has run on (seed 130399)

    def known_voters(self) -> frozenset[int]:
        """Return the voters whose present disks it knows, up or down: no other disk votes there."""
        store = self.store
        if store is None:
            return self._knew
        log = store.log
        if log.voters_index > store.core.commit_index:
            return frozenset()
        return frozenset(each.node_id for each in log.voters.members if each.directory_id.int)

    def _mark_down(self, how: str) -> SimLoop:
        self._knew = self.known_voters()
        self._graveyard.append(self.store)
        self.store = None
        loop = super()._mark_down(how)
        self.on_down(self.node_id)
        return loop

    def _note_power_cut(self) -> None:
        self.history.data.excuses.on_power_cut(self.node_id)
        self.on_power_cut(self.node_id)

    def wipe(self) -> None:
        """Lose all disks; the next life finds new ones."""
        self.crash()
        self.trace("wipe", self.name)
        self._knew = frozenset()
        self.machine = self._new_machine()
        self.history.data.excuses.on_wipe(self.node_id, "/")
        self.wipes += 1

    def renew(self) -> None:
        """Have new disks where nobody counts on the old ones: the node was forgotten."""
        self.crash()
        self.trace("renew", self.name)
        self._knew = frozenset()
        self.machine = self._new_machine()
        self.history.data.forget_node(self.node_id)

    def wipe_disk(self, mount: str) -> None:
        """Lose one disk of several."""
        self.crash()
        self.trace("wipe-disk", self.name, mount)
        fresh = self._new_machine()
        self.machine.disks[mount] = fresh.disks[mount]
        self.history.data.excuses.on_wipe(self.node_id, f"{mount}/")
        self.wipes += 1

    # -- what the checks look at

    @property
    def is_paused(self) -> bool:
        """Whether the process is stopped."""
        return self.loop is not None and self.loop.parked is not None

    @property
    def is_serving(self) -> bool:
        """Whether the node is up and may be asked."""
        return self.state == "up" and self.broker is not None and not self.is_paused

    def holds_lease(self) -> bool:
        """Whether the process, if it did something now, would do it under a lease."""
        broker = self.broker
        if broker is None or broker.clustering is None or self.clock is None:
            return False
        return broker.clustering.lease.is_valid(self.clock.now_ms())

    def _on_disk(self, operation: str, path: str, position: int, length: int) -> None:
        super()._on_disk(operation, path, position, length)
        loop = asyncio.events._get_running_loop()
        if self.loop is None or loop not in self.loop.threads or "sync" not in operation:
            return
        assert isinstance(loop, SimLoop)
        disk = self.machine.disk_of(path)
        loop.stall_ns += int(disk.latency.draw(self.machine.rng) * NS)
        if disk.latency.factor > 1:  # a few flushes may take longer than a stop may (seed 111629)
            self.unstuck_ns = max(self.unstuck_ns, self.world.now_ns + loop.stall_ns)
        if disk.stuck:
            loop.stall_ns += 1
            loop.stuck = disk.when_unstuck
