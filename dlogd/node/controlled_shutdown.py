"""Controlled shutdown: other nodes take over leadership before the stop.

Part of the composition: `dlogd.node.cluster_node` calls it. Everything here is a courtesy with an
end: a node that cannot take its leave is fenced as if it had died, and nothing is lost.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable

from dlog.types import NodeId
from dlogd.controller.leadership_transfer import TRANSFER_TIMEOUT_MS, quorum_state, successors
from dlogd.controller.own_lease import OwnLease
from dlogd.metadata.interface import Quorum
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.image import Applied
from dlogd.runtime.clock import Clock

log = logging.getLogger(__name__)

LOOK_S = 0.01
AGAIN_S = 0.1


async def take_leave(
    store: Quorum,
    node_id: NodeId,
    lease: OwnLease,
    clock: Clock,
    *,
    ask: Callable[[], None],
    timeout_s: float,
) -> None:
    """Return when this node leads nothing that another could lead, or nobody is there to see to it.

    `ask()` tells the controller that the node wants to stop.
    """
    try:
        async with asyncio.timeout(timeout_s):
            ask()
            why = await _until_moved(store, node_id, lease, clock)
            log.info("Controlled shutdown finished outcome=%r", why)
            await _hand_the_quorum_on(store, node_id, clock)
    except TimeoutError:
        log.warning("Stopping before all leaders have moved timeout_s=%.1f", timeout_s)


async def _until_moved(store: Quorum, node_id: NodeId, lease: OwnLease, clock: Clock) -> str:
    while True:
        own = store.image.nodes.get(node_id)
        if own is None or own.node_epoch != lease.node_epoch or own.fenced:
            return "it leads nothing"
        if own.shutting_down:
            return "the controller has moved its leaders"
        if not lease.is_valid(clock.now_ms()):
            return "it has no lease"
        await asyncio.sleep(LOOK_S)


async def _hand_the_quorum_on(store: Quorum, node_id: NodeId, clock: Clock) -> None:
    """Let another voter lead the metadata, when this node does: an election takes longer.

    Again and again: a voter that lacks one entry, as they do for moments while there is work,
    cannot be given the office.
    """
    for attempt in itertools.count():
        state = await quorum_state(store)
        heirs = successors(state, store.image, node_id)
        if state.leader_id != node_id or not heirs:
            return
        successor = heirs[attempt % len(heirs)]
        deadline_ms = clock.now_ms() + TRANSFER_TIMEOUT_MS
        outcome = await store.change_voters(Operation.TRANSFER, successor, deadline_ms)
        if not isinstance(outcome, Applied):
            log.info("Metadata leadership was not transferred to=%d outcome=%r", successor, outcome)
            await asyncio.sleep(AGAIN_S)
            continue
        while clock.now_ms() < deadline_ms:
            if (await quorum_state(store)).leader_id != node_id:
                return
            await asyncio.sleep(LOOK_S)
