"""Lease table of the controller: which nodes may lead, are suspected, or are given up.

Pure: fed with heartbeats, broken connections, answers of probes, images and time; asked for probes
to send and for what the planner needs. One table for each time that this node is controller.

A node is *condemned* when its lease has run out, its process is proven dead, or it gave the lease
up. That is final: nothing but a fence in the image, and the end of that fence, makes it grantable
again, so that whoever acts on it acts on something that cannot change behind his back.

A lease is only taken for run out by `poll`. Until then a late heartbeat renews it, which is safe,
for nobody has acted yet.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from dlog.types import NodeId
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.internal.beat import Beat
from dlogd.metadata.state.image import NodeRegistration

STALLS_FORGIVEN_MAX = 5
"""How often in a row a node that is not heard of gets the time for which the controller stood
still; what it sent is read after the first.
"""

RETURN_MS_MAX = 30_000
"""How long a returning node may be silent: its first heartbeat comes when all its logs are open."""


class Condemned(StrEnum):
    """Why a node is given up."""

    EXPIRED = "expired"  # silence for as long as its lease
    REFUSED = "refused"  # nothing listens where its process was
    REPLACED = "replaced"  # another life of the node answers there
    SURRENDERED = "surrendered"  # it said so itself, and acts no more


class Probed(Enum):
    """What became of a probe."""

    ANSWERED = "answered"
    REFUSED = "refused"
    SILENT = "silent"


class NoLease(Enum):
    """Why a heartbeat is answered without a lease."""

    NOT_CONTROLLER = "not the controller, or not surely"
    UNKNOWN = "not registered, or not as this life yet"
    REPLACED = "a later life of it is registered"
    FENCED = "fenced"
    CONDEMNED = "about to be fenced"
    BEHIND = "its image is too old"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOrder:
    """Whom to probe; the answer goes to `on_probe` with the same order."""

    node_id: NodeId
    node_epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What the planner needs to know of one registered node."""

    node_epoch: int
    condemned: Condemned | None  # fence it, when the image does not yet
    heard_ms: int | None  # the last heartbeat of this life, by the controller's clock
    caught_up: bool  # its last heartbeat had a recent image: a fenced node may return
    wants_shutdown: bool
    suspected: bool


class _Entry:
    """One registered life of a node."""

    __slots__ = (
        "beat",
        "condemned",
        "expires_ms",
        "fenced",
        "heard_ms",
        "may_be_starting",
        "next_probe_ms",
        "node_epoch",
        "probe",
        "refusals",
        "return_by_ms",
        "stalls",
        "suspected",
        "version_min",
        "vouched_ms",
    )

    def __init__(self, node: NodeRegistration, version: int, now_ms: int, expires_ms: int) -> None:
        self.node_epoch = node.node_epoch
        self.fenced = node.fenced
        self.expires_ms = expires_ms  # no lease of it is valid from then on
        # Kept in its ISRs until it is unfenced, but not for ever (decision 0021, 3).
        self.return_by_ms = now_ms + RETURN_MS_MAX if node.returning else None
        # An older image may not hold what happened while it was fenced.
        self.version_min = version
        self.condemned: Condemned | None = None
        self.beat: Beat | None = None
        self.heard_ms: int | None = None
        self.may_be_starting = False  # a later life, which registers any moment
        self.vouched_ms = now_ms  # when its process answered last, be it to a probe
        self.suspected = False
        self.probe: int | None = None  # number of the probe under way
        self.next_probe_ms = now_ms
        self.refusals = 0
        self.stalls = 0  # of the controller, since the node was heard of

    @property
    def holds(self) -> bool:
        """Whether it may hold a lease."""
        return not self.fenced and self.condemned is None

    @property
    def returns(self) -> bool:
        """Whether it is fenced, and in its ISRs all the same."""
        return self.return_by_ms is not None

    def ends(self, now_ms: int) -> bool:
        """Whether nobody has to wait for it any longer."""
        if self.holds:
            return now_ms >= self.expires_ms
        by_ms = self.return_by_ms
        return self.condemned is None and by_ms is not None and now_ms >= by_ms

    def suspect(self, now_ms: int) -> None:
        """Have it probed from now on."""
        if self.holds and not self.suspected:
            self.suspected = True
            self.refusals = 0
            self.next_probe_ms = max(now_ms, self.next_probe_ms)

    def clear(self) -> None:
        """Suspect it no more; a probe under way does not count."""
        self.suspected = False
        self.probe = None
        self.refusals = 0

    def condemn(self, why: Condemned) -> None:
        """Give it up."""
        self.condemned = why
        self.clear()


class LeaseTable:
    """Leases of all nodes, as the controller of `controller_epoch` knows them.

    Owner: the event loop's thread. `now_ms` never goes back between calls.
    """

    def __init__(
        self,
        timings: LeaseTimings,
        controller_epoch: int,
        nodes: Mapping[NodeId, NodeRegistration],
        version: int,
        now_ms: int,
        *,
        begins: bool = False,
    ) -> None:
        """Take over: `now_ms` is a moment at which this node surely was elected already.

        `nodes` and `version` are of an image in which this controller's claim is applied, so that
        the machine refuses from then on what an earlier controller has proposed: a fence of its
        that came later would find a node with a lease of ours. Each node that is not fenced may
        hold a lease of an earlier controller; all are probed.

        `begins`: the controller itself has only just started. Then all may have been down, and a
        node that does not answer as the life that is known is probably starting, too: only the end
        of its lease condemns it, so that it comes back in its place (decision 0021, 3).
        """
        self.controller_epoch = controller_epoch
        self.condemned_total = dict.fromkeys(Condemned, 0)
        self._timings = timings
        self._contact_ms: int | None = None
        self._polled_ms = now_ms
        self._version = version
        self._versions: deque[tuple[int, int]] = deque()  # (time, version), both ascending
        # What a heartbeat's image must have at least; an earlier controller may have fenced and
        # readmitted a node that has seen neither.
        self._version_due = version
        self._probe_number = 0
        self._entries: dict[NodeId, _Entry] = {}
        for node_id in sorted(nodes):
            expires_ms = now_ms + timings.held_ms
            entry = self._entries[node_id] = _Entry(nodes[node_id], 0, now_ms, expires_ms)
            entry.may_be_starting = begins
            entry.suspect(now_ms)

    # -- events

    def on_contact(self, begun_ms: int) -> None:
        """Learn that this node surely led Raft at `begun_ms`, before which the proof was begun.

        The moment at which a round to a quorum, or a command that was applied since, was *sent*.
        """
        if self._contact_ms is None or begun_ms > self._contact_ms:
            self._contact_ms = begun_ms

    def _recent_contact_ms(self, now_ms: int) -> int | None:
        """Return when this node surely led last, None when that is too long ago to grant."""
        contact_ms = self._contact_ms
        if contact_ms is None or now_ms >= contact_ms + self._timings.authority_ms:
            return None
        return contact_ms

    def on_image(self, nodes: Mapping[NodeId, NodeRegistration], version: int, now_ms: int) -> None:
        """Follow a newer image: registrations, fences and their ends."""
        if version <= self._version:
            return
        self._version = version
        self._versions.append((now_ms, version))
        for node_id in [each for each in self._entries if each not in nodes]:
            del self._entries[node_id]
        for node_id, node in nodes.items():
            entry = self._entries.get(node_id)
            if entry is None or entry.node_epoch != node.node_epoch:
                # Nobody can have given this life a lease yet; it only gets time to ask for one.
                expires_ms = now_ms + self._timings.held_ms
                self._entries[node_id] = _Entry(node, version, now_ms, expires_ms)
            elif node.fenced and (not entry.fenced or (entry.returns and not node.returning)):
                entry.fenced = True
                entry.return_by_ms = None
                entry.condemned = None
                # Only what it sends once it knows of its fence says that it lives.
                entry.version_min = version
                entry.clear()
                # What it told before says nothing of whether it can return now.
                entry.beat, entry.heard_ms = None, None
            elif entry.fenced and not node.fenced:
                entry.fenced = False
                entry.return_by_ms = None
                entry.version_min = version
                entry.expires_ms = now_ms + self._timings.held_ms

    def on_beat(self, beat: Beat, now_ms: int) -> int | NoLease:
        """Take a heartbeat; return for how long it is granted (ms), or why not.

        Until `lease_ms` after the last proof, so from before a later controller was elected: that
        one outwaits it by waiting for as long from its election (decision 0028).
        """
        contact_ms = self._recent_contact_ms(now_ms)
        if contact_ms is None:
            return NoLease.NOT_CONTROLLER
        entry = self._entries.get(beat.node_id)
        if entry is None or entry.node_epoch < beat.node_epoch:
            return NoLease.UNKNOWN
        if entry.node_epoch > beat.node_epoch:
            return NoLease.REPLACED
        entry.beat = beat
        entry.heard_ms = entry.vouched_ms = now_ms
        entry.may_be_starting = False
        entry.stalls = 0
        if entry.fenced:
            if entry.returns:
                entry.return_by_ms = now_ms + RETURN_MS_MAX
            return NoLease.FENCED
        if entry.condemned is None and beat.surrenders:
            self._condemn(entry, Condemned.SURRENDERED)
        if entry.condemned is not None:
            return NoLease.CONDEMNED
        entry.clear()
        if not self._is_recent(entry, beat, now_ms):
            return NoLease.BEHIND
        granted_ms = contact_ms + self._timings.lease_ms - now_ms
        # Never earlier: a deposed controller that does not know it yet may have granted since.
        entry.expires_ms = max(entry.expires_ms, now_ms + self._timings.outwait_ms(granted_ms))
        return granted_ms

    def on_disconnect(self, node_id: NodeId, node_epoch: int, now_ms: int) -> None:
        """Suspect a node: the connection on which it sent its last heartbeat has ended."""
        entry = self._entries.get(node_id)
        if entry is not None and entry.node_epoch == node_epoch:
            entry.suspect(now_ms)

    def on_probe(
        self, order: ProbeOrder, result: Probed, now_ms: int, node_epoch: int | None = None
    ) -> None:
        """Take the outcome of a probe; `node_epoch` is what an answer said (-1: none yet)."""
        entry = self._entries.get(order.node_id)
        if entry is None or entry.probe != order.number:
            return  # it was heard of, fenced or registered anew meanwhile
        entry.probe = None
        entry.next_probe_ms = now_ms + self._timings.probe_pause_ms
        if result is Probed.ANSWERED:
            if node_epoch == entry.node_epoch:
                entry.vouched_ms = now_ms
                entry.clear()
            elif not entry.may_be_starting:
                self._condemn(entry, Condemned.REPLACED)
            return
        if result is Probed.SILENT or entry.may_be_starting:
            entry.refusals = 0
            return
        entry.refusals += 1
        if entry.refusals >= self._timings.refusals_min:
            self._condemn(entry, Condemned.REFUSED)

    # -- time

    def poll(self, now_ms: int) -> None:
        """Condemn whose lease has run out, suspect who is overdue; at least each heartbeat."""
        gap_ms = now_ms - self._polled_ms
        self._polled_ms = now_ms
        if gap_ms > 2 * self._timings.heartbeat_ms:
            # This process stood still: what nodes sent meanwhile is still unread. Not for ever: one
            # that is slow all the time would give nobody up.
            for entry in self._entries.values():
                if entry.stalls >= STALLS_FORGIVEN_MAX:
                    continue
                entry.stalls += 1
                entry.expires_ms += gap_ms
                entry.vouched_ms += gap_ms
                if entry.heard_ms is not None:
                    entry.heard_ms += gap_ms
        for entry in self._entries.values():
            if entry.ends(now_ms):
                self._condemn(entry, Condemned.EXPIRED)
            elif entry.holds and now_ms - entry.vouched_ms >= self._timings.overdue_ms:
                entry.suspect(now_ms)

    def take_probes(self, now_ms: int) -> list[ProbeOrder]:
        """Return whom to probe now; each goes on until its `on_probe`."""
        orders = []
        for node_id, entry in self._entries.items():
            if entry.suspected and entry.probe is None and now_ms >= entry.next_probe_ms:
                self._probe_number += 1
                entry.probe = self._probe_number
                orders.append(
                    ProbeOrder(node_id=node_id, node_epoch=entry.node_epoch, number=entry.probe)
                )
        return orders

    def next_probe_ms(self) -> int | None:
        """Return when `take_probes` has something to say, None when nobody waits for a probe."""
        due = [e.next_probe_ms for e in self._entries.values() if e.suspected and e.probe is None]
        return min(due, default=None)

    # -- what follows

    def liveness(self, now_ms: int) -> dict[NodeId, Liveness]:
        """Return what is known of every registered node, sorted by node id."""
        found = {}
        for node_id in sorted(self._entries):
            entry = self._entries[node_id]
            beat = entry.beat
            heard = entry.heard_ms
            recent = heard is not None and now_ms - heard < self._timings.overdue_ms
            found[node_id] = Liveness(
                node_epoch=entry.node_epoch,
                condemned=entry.condemned,
                heard_ms=heard,
                caught_up=(
                    recent
                    and beat is not None
                    and not beat.surrenders  # it will not act again in this life
                    and self._is_recent(entry, beat, now_ms)
                ),
                wants_shutdown=beat is not None and beat.wants_shutdown,
                suspected=entry.suspected,
            )
        return found

    def _is_recent(self, entry: _Entry, beat: Beat, now_ms: int) -> bool:
        versions = self._versions
        old_ms = now_ms - self._timings.image_lag_ms_max
        while versions and versions[0][0] <= old_ms:
            self._version_due = versions.popleft()[1]
        return beat.image_version >= max(entry.version_min, self._version_due)

    def _condemn(self, entry: _Entry, why: Condemned) -> None:
        self.condemned_total[why] += 1
        entry.condemn(why)
