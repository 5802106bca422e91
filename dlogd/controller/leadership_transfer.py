"""Transfer of the Raft leadership by a leader that cannot act as controller.

A voter takes part in elections from the moment at which it opened its metadata until it closes
them. It can act as controller for a shorter time: not before it has recovered its logs and has
registered, which may take minutes, and not while it closes its logs. Without a controller nobody
grants leases, and all partitions of the cluster stand still.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable

from dlog.errors import DlogError
from dlog.types import NodeId
from dlogd.metadata.interface import Quorum
from dlogd.metadata.raft.membership import Operation, QuorumState
from dlogd.metadata.state.image import Applied, ClusterImage
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S = 1.0
TRANSFER_TIMEOUT_MS = 1_000
REST_MS = 30_000
"""How long somebody is left alone who was given the office and did not keep it."""


async def quorum_state(store: Quorum) -> QuorumState:
    """Return who votes, who follows and how far they are."""
    found = store.quorum()
    return await found if inspect.isawaitable(found) else found


def successors(
    state: QuorumState, image: ClusterImage, node_id: NodeId, *, since: int | None = None
) -> list[NodeId]:
    """Return the voters that could act, as far as the metadata tell, the furthest first.

    Those that are active; then those that are fenced and have registered after the image of version
    `since`: they run, and are fenced because nobody has acted since.
    """
    others = [
        NodeId(each.node_id) for each in sorted(state.voters, key=lambda v: -v.log_end_offset)
    ]
    nodes = [image.nodes[each] for each in others if each != node_id and each in image.nodes]
    found = [node for node in nodes if node.active]
    if since is not None:
        found += [node for node in nodes if node.fenced and node.node_epoch > since]
    return [node.node_id for node in found]


class LeadershipTransfer:
    """Hands the office on while this node has it and cannot act.

    It does not do so for ever: when a whole cluster starts, the metadata take nodes for active that
    have not registered yet, and the office would go round among them. So each is tried once, and
    again when it has registered, when somebody has acted, or after a while. Where nobody is left
    this node keeps the office, and registers under its own lead.

    Owner: the event loop's thread. Life: `start` once, `stop` once, at the latest with its tasks.
    """

    def __init__(self, store: Quorum, node_id: NodeId, *, clock: Clock, tasks: Tasks) -> None:
        self.can_act: Callable[[], bool] = lambda: False
        """Whether this node could be the controller now."""
        self._store = store
        self._node_id = node_id
        self._clock = clock
        self._tasks = tasks
        self._since = store.image.version
        self._leads = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Who was tried: in which life of his, under which controller, until when that counts.
        self._tried: dict[NodeId, tuple[int, int, int]] = {}

    def start(self) -> None:
        """Watch from now on."""
        self._store.on_leadership(self._on_leadership)
        self._task = self._tasks.spawn("succession", self._run(), is_vital=True)

    def stop(self) -> None:
        """Hand nothing on any more."""
        if self._task is not None:
            self._task.cancel()

    def look(self) -> None:
        """Look now: this node can act no longer."""
        self._wake.set()

    def _on_leadership(self, leads: bool, term: int) -> None:
        self._leads = leads
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if not self._leads or self.can_act():
                await self._wake.wait()
                continue
            try:
                await self._hand_on()
                async with asyncio.timeout(RETRY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            except DlogError as error:
                log.debug("Metadata store is closed error=%s", error)
                return

    async def _hand_on(self) -> None:
        state = await quorum_state(self._store)
        image, now_ms = self._store.image, self._clock.now_ms()
        for node_id in successors(state, image, self._node_id, since=self._since):
            now = (image.nodes[node_id].node_epoch, image.controller.epoch)
            *then, until_ms = self._tried.get(node_id, (-1, -1, 0))
            if (*then,) == now and now_ms < until_ms:
                continue
            deadline_ms = now_ms + TRANSFER_TIMEOUT_MS
            outcome = await self._store.change_voters(Operation.TRANSFER, node_id, deadline_ms)
            if isinstance(outcome, Applied):
                self._tried[node_id] = (*now, now_ms + REST_MS)
                log.info(
                    "Transferred metadata leadership because this node cannot act as controller"
                    " to=%d",
                    node_id,
                )
                return
            log.debug("Metadata leadership was not transferred to=%d outcome=%r", node_id, outcome)
