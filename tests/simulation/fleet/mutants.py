"""Known holes of clusters, opened again; the simulation of whole nodes must see each.

Names begin with the hole's number in docs/decisions or in the analysis of the tutorial's design.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dlog.types import LeaderEpoch, NodeId
from dlogd.controller import driver
from dlogd.controller.driver import ControllerDriver
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.leases import LeaseTable
from dlogd.controller.own_lease import OwnLease
from dlogd.metadata.commands.codec import FenceNodes, Guarded, UnfenceNode
from dlogd.metadata.machine import apply, cluster, election, topic
from dlogd.metadata.machine import node as node_steps
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.raft.participant import Participant
from dlogd.metadata.state.image import Applied
from dlogd.replication import replica_manager
from dlogd.replication.replica_manager import ReplicaManager
from tests.simulation.fleet.data_mutants import DATA_MUTANTS, _open_everything
from tests.simulation.patches import Patch, patched

_calls = itertools.count()


def _do_nothing(_: Any) -> Any:
    return lambda *_arguments, **_options: None


def _by_order_of_the_day(original: Any) -> Any:
    """Order candidates as a map of another life of the process might."""

    def candidates(nodes: Any, replicas: Any, offline: Any) -> Any:
        able = original(nodes, replicas, offline)
        return able[::-1] if next(_calls) % 2 else able

    return candidates


def _epoch_of_the_node(_: Any) -> Any:
    return lambda partition: LeaderEpoch(partition.leader_epoch + 1 + next(_calls) % 2)


def _fence_oneself(original: Any) -> Any:
    """Change the image where a node loses the leadership, beside the log."""

    def note(self: Any) -> None:
        leads = self._leadership[0]
        original(self)
        node = self.state.image.nodes.get(NodeId(self._config.node_id))
        if leads and not self._leadership[0] and node is not None:
            nodes = {**self.state.image.nodes, node.node_id: replace(node, fenced=True)}
            self.state.image = replace(self.state.image, nodes=nodes)

    return note


def _remove_who_is_silent(original: Any) -> Any:
    async def propose(self: Any, command: Any) -> Any:
        outcome = await original(self, command)
        plain = command.command if isinstance(command, Guarded) else command
        if isinstance(plain, FenceNodes) and isinstance(outcome, Applied):
            deadline_ms = self._clock.now_ms() + driver.PROPOSE_TIMEOUT_MS
            for node_id, _ in plain.nodes:
                await self._store.change_voters(Operation.REMOVE, node_id, deadline_ms)
        return outcome

    return propose


def _let_waiters_wait(original: Any) -> Any:
    def unfence(image: Any, command: Any) -> Any:
        changed, value = original(image, command)
        return replace(changed, topics=image.topics, topics_by_id=image.topics_by_id), value

    return unfence


def _know_only_what_was_seen(original: Any) -> Any:
    """Begin as controller without asking after nodes that fell silent before."""

    def begin(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        for entry in self._entries.values():
            entry.clear()
            entry.expires_ms = entry.vouched_ms = 1 << 60

    return begin


def take_any_grant(original: Any) -> Any:
    def on_grant(self: Any, grant: Any) -> bool:
        epochs = {"node_epoch": self.node_epoch, "controller_epoch": self.controller_epoch}
        return bool(original(self, replace(grant, **epochs)))

    return on_grant


def grant_to_any_life(original: Any) -> Any:
    def on_beat(self: Any, beat: Any, now_ms: int) -> Any:
        entry = self._entries.get(beat.node_id)
        if entry is not None:
            beat = replace(beat, node_epoch=entry.node_epoch)
        return original(self, beat, now_ms)

    return on_beat


def _count_from_the_answer(original: Any) -> Any:
    def on_grant(self: Any, grant: Any) -> bool:
        sent = self._sent_ms.get(grant.sequence)
        if sent is not None:
            self._sent_ms[grant.sequence] = max(self._sent_ms.values()) + grant.lease_ms // 3
        return bool(original(self, grant))

    return on_grant


class _Steps:
    """The machine's steps by the name of their command, as attributes."""

    def __getattr__(self, name: str) -> Any:
        return next(step for kind, step in apply._STEPS.items() if kind.__name__ == name)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = next(kind for kind in apply._STEPS if kind.__name__ == name)
        apply._STEPS[kind] = value


MUTANTS: dict[str, tuple[Patch, ...]] = {
    "only the Raft leader's own proposals count": ((Participant, "_forward", _do_nothing),),
    "H10 a node opens replicas that are not its own": (
        (replica_manager, "mine", _open_everything),
    ),
    "H11 commands of former controllers count": ((cluster, "check_guard", _do_nothing),),
    "H12 leaders are chosen in the order of a map": (
        (election, "candidates", _by_order_of_the_day),
    ),
    "H12 epochs are made outside of the machine": (
        (election, "next_leader_epoch", _epoch_of_the_node),
        (node_steps, "next_leader_epoch", _epoch_of_the_node),
    ),
    "a topic made again looks older than the one before it": (
        (topic, "_floor_above", lambda _: lambda image, doomed: image.epoch_floor),
    ),
    "H13 a node changes its image beside the log": (
        (Participant, "_note_leadership", _fence_oneself),
    ),
    "H20 who is silent loses its vote": ((ControllerDriver, "_propose", _remove_who_is_silent),),
    "L2 a replica that returns leads nothing": (
        (_Steps(), UnfenceNode.__name__, _let_waiters_wait),
    ),
    "L10 images open no logs": ((ReplicaManager, "on_image", _do_nothing),),
    "L13 a new controller knows of no earlier silence": (
        (LeaseTable, "__init__", _know_only_what_was_seen),
    ),
    "leases count from the answer": ((OwnLease, "on_grant", _count_from_the_answer),),
    "a lease is taken for over before it is": (
        (LeaseTimings, "outwait_ms", lambda _: lambda self, ms: math.floor(ms * 0.5)),
    ),
    **DATA_MUTANTS,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Open one hole for a while."""
    with patched(MUTANTS[name]):
        yield
