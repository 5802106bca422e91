"""Driver of the controller on the node that leads the metadata: claim, leases, plans, proposals.

Raft says who leads; the claim in the log makes that node the controller, and what earlier
controllers still have under way is refused from then on. Everything is computed anew from the image
each time: nothing here has to survive.
"""

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from dlog.types import NodeId
from dlogd.controller import leases
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.lease_watch import LeaseWatch
from dlogd.controller.leases import LeaseTable
from dlogd.controller.planner import NodeLiveness, Planner, PlannerSettings
from dlogd.metadata.commands.codec import ClaimController, Command
from dlogd.metadata.interface import Quorum
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import Applied, ClusterImage
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

PLAN_PAUSE_MS = 1_000
"""How long nothing has to happen before the controller looks again."""
PROPOSE_TIMEOUT_MS = 10_000

MakeWatch = Callable[[LeaseTable, Callable[[], None]], LeaseWatch]


def node_liveness(known: dict[NodeId, leases.Liveness], now_ms: int) -> dict[NodeId, NodeLiveness]:
    """Return what the planner is told about nodes, from what the book of leases says."""
    return {
        node_id: NodeLiveness(
            node_epoch=each.node_epoch,
            # Only the table says when a lease has ended; until then it may be renewed.
            lease_end_ms=now_ms + 1 if each.condemned is None else now_ms,
            heard=each.heard_ms is not None,
            # A node sends heartbeats once its logs are open.
            ready=each.caught_up,
            image_version=each.node_epoch if each.caught_up else -1,
            wants_shutdown=each.wants_shutdown,
        )
        for node_id, each in known.items()
    }


class ControllerDriver:
    """Acts while this node leads. Owner: the event loop's thread. Life: `start`, then `stop`."""

    def __init__(
        self,
        node_id: NodeId,
        store: Quorum,
        timings: LeaseTimings,
        *,
        clock: Clock,
        tasks: Tasks,
        new_id: Callable[[], UUID],
        node_epoch: Callable[[], int],
        make_watch: MakeWatch,
        settings: PlannerSettings,
    ) -> None:
        """`node_epoch()` is that of this life, -1 before it has registered."""
        self.plans_total = 0
        self.elections_total = 0
        self.table: LeaseTable | None = None
        """The book of leases while this node is controller."""
        self.on_began: Callable[[], None] = _ignore
        """Called when this node has become controller and takes heartbeats."""
        self._node_id = node_id
        self._store = store
        self._timings = timings
        self._clock = clock
        self._tasks = tasks
        self._new_id = new_id
        self._node_epoch = node_epoch
        self._make_watch = make_watch
        self._settings = settings
        self._leads = False
        self._watch: LeaseWatch | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Act from now on, whenever this node leads."""
        self._store.on_leadership(self._on_leadership)
        self._store.subscribe(self._on_image)
        self._task = self._tasks.spawn("controller", self._run(), is_vital=True)

    async def stop(self) -> None:
        """Act no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def wake(self) -> None:
        """Look now: something has changed."""
        self._wake.set()

    def _on_leadership(self, leads: bool, term: int) -> None:
        log.info("Metadata leadership changed leads=%s term=%d", leads, term)
        self._leads = leads
        self._wake.set()

    def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        if self._watch is not None:
            self._watch.on_image(new.nodes, new.version)
        self._note_elections(delta)
        if new.nodes is not old.nodes or new.controller != old.controller:
            self._wake.set()

    def _note_elections(self, delta: ImageDelta) -> None:
        for changed in delta.topics_changed:
            for number in changed.partitions_changed:
                old, new = changed.old.partitions[number], changed.new.partitions[number]
                self.elections_total += new.leader != old.leader and new.has_leader
            for number in changed.unclean if delta.unclean_elections else ():
                log.warning(
                    "Unclean election: the leader may lack acknowledged records partition=%s-%d"
                    " leader=%d leader_epoch=%d",
                    changed.new.name,
                    number,
                    changed.new.partitions[number].leader,
                    changed.new.partitions[number].leader_epoch,
                )

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._leads and self._node_epoch() >= 0:
                await self._act()
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(PLAN_PAUSE_MS / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _act(self) -> None:
        """Be controller until another one is, or this node leads no longer."""
        # Leases of earlier controllers count from a moment at which this node led already.
        begun_ms = self._clock.now_ms()
        epoch = await self._claim()
        if epoch is None:
            return
        image = self._store.image
        own = image.nodes.get(self._node_id)
        begins = own is None or own.fenced
        table = LeaseTable(
            self._timings, epoch, image.nodes, image.version, begun_ms, begins=begins
        )
        watch = self._make_watch(table, self._wake.set)
        await watch.start()
        self.table, self._watch = table, watch
        log.info("Became controller controller_epoch=%d nodes=%d", epoch, len(image.nodes))
        self.on_began()
        try:
            await self._plan_on(table, Planner(epoch, self._new_id, self._settings))
        finally:
            self.table = self._watch = None
            await watch.stop()
            log.info("Stopped being controller controller_epoch=%d", epoch)

    async def _claim(self) -> int | None:
        command = ClaimController(
            command_id=self._new_id(),
            node_id=self._node_id,
            node_epoch=self._node_epoch(),
            controller_epoch=self._store.image.controller.epoch,
        )
        outcome = await self._propose(command)
        if isinstance(outcome, Applied):
            return outcome.value
        log.warning("Controller claim failed outcome=%r", outcome)
        return None

    async def _plan_on(self, table: LeaseTable, planner: Planner) -> None:
        while self._leads and self._store.image.controller.epoch == table.controller_epoch:
            self._wake.clear()
            now_ms = self._clock.now_ms()
            liveness = node_liveness(table.liveness(now_ms), now_ms)
            plan = planner.plan(self._store.image, liveness, now_ms)
            progress = False
            if plan.commands:
                self.plans_total += 1
                log.info("Controller plan=%r", plan.sentence)
            for command in plan.commands:
                outcome = await self._propose(command)
                progress = isinstance(outcome, Applied)
                if not progress:
                    log.warning("Controller changes were not applied outcome=%r", outcome)
                    break
            if not progress:
                await self._pause()

    async def _propose(self, command: Command) -> object:
        return await self._store.propose(command, self._clock.now_ms() + PROPOSE_TIMEOUT_MS)


def _ignore() -> None:
    pass
