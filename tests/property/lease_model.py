"""Model of everything around leases: nodes, controllers, clocks that drift, messages that are late.

The model has hosts whose clocks drift as far as allowed, messages that are late, lost and out of
order, controllers that are deposed and do not know it, images that arrive late, crashes and
restarts. The `LeaseTable` and the `OwnLease` are the real ones. True time is known to the test
alone.
"""

import heapq
import itertools
from dataclasses import dataclass, field, replace
from random import Random

from dlog.types import NodeId
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.leases import (
    Beat,
    Condemned,
    LeaseTable,
    NoLease,
    Probed,
    ProbeOrder,
)
from dlogd.controller.own_lease import Grant, OwnLease
from dlogd.metadata.state.image import NodeRegistration

Nodes = dict[NodeId, NodeRegistration]
NODE_IDS = (NodeId(1), NodeId(2), NodeId(3))
RUN_MS = 40_000.0


def registration(node_id: NodeId, epoch: int, *, fenced: bool) -> NodeRegistration:
    """Return a registration without what leases do not look at."""
    return NodeRegistration(
        node_id=node_id,
        node_epoch=epoch,
        directory_ids=(),
        addresses=(),
        rack=None,
        version="",
        fenced=fenced,
    )


@dataclass
class HostClock:
    """A monotonic clock in whole milliseconds, fast or slow."""

    offset_ms: float
    drift_ppm: int

    def at(self, true_ms: float) -> int:
        return int(self.offset_ms + true_ms * (1 + self.drift_ppm / 1e6))


@dataclass
class Host:
    """A node: its lease, its clock, the image that it has."""

    node_id: NodeId
    clock: HostClock
    lease: OwnLease = field(default_factory=OwnLease)
    up: bool = True
    version: int = 0
    life: int = 0


@dataclass
class Reign:
    """One controller, deposed at `end_ms` whether it knows or not."""

    epoch: int
    host: NodeId
    table: LeaseTable
    version: int
    end_ms: float = float("inf")
    # Whose fence is proposed: the driver waits for an outcome before it plans again.
    fencing: dict[NodeId, None] = field(default_factory=dict)


class Cluster:
    """The model. `step` runs until the end of the run."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.timings = LeaseTimings(
            clock_drift_ppm=rng.choice((0, 1_000, 100_000)),
            probe_pause_ms=rng.choice((1, 50)),
            refusals_min=rng.choice((1, 2)),
        )
        drift = self.timings.clock_drift_ppm
        self.now = 0.0
        self.log: list[Nodes] = [{n: registration(n, 1, fenced=False) for n in NODE_IDS}]
        self.hosts = {
            n: Host(n, HostClock(rng.uniform(0, 1e6), rng.choice((-drift, 0, drift))))
            for n in NODE_IDS
        }
        for host in self.hosts.values():
            host.lease.begin(1)
        self.delay_max = rng.choice((5.0, 400.0, 4_000.0))
        self.loss = rng.choice((0.0, 0.2, 0.6))
        self.learn_ms = rng.choice((100.0, 6_000.0, 25_000.0))
        self.fenced_at = dict.fromkeys(NODE_IDS, 0)
        self.reigns: list[Reign] = []
        self.events: list[tuple[float, int, object]] = []
        self.order = itertools.count()
        self.grants = self.fences = self.deposed_grants = 0

    # -- machinery

    def later(self, delay: float, work: object) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), work))

    def send(self, work: object) -> None:
        """Deliver late, or never."""
        if self.rng.random() >= self.loss:
            self.later(self.rng.uniform(0, self.delay_max), work)

    def run(self) -> None:
        self.elect()
        for host in self.hosts.values():
            self.later(self.rng.uniform(0, 300), lambda h=host: self.beat(h))
            self.later(self.rng.uniform(0, 300), lambda h=host: self.learn(h))
        self.later(self.rng.uniform(0, 9_000), self.depose)
        self.later(self.rng.uniform(0, 9_000), self.crash)
        while self.events and self.now < RUN_MS:
            self.now, _, work = heapq.heappop(self.events)
            work()  # type: ignore[operator]
            self.check()

    def check(self) -> None:
        image = self.log[-1]
        for host in self.hosts.values():
            if not host.up:
                continue
            valid = host.lease.is_valid(host.clock.at(self.now))
            registered = image[host.node_id]
            seen = self.log[host.version][host.node_id]
            acts = valid and not seen.fenced and seen.node_epoch == host.lease.node_epoch
            replaced = registered.node_epoch != host.lease.node_epoch
            assert not (acts and (registered.fenced or replaced)), f"{host} acts, {registered}"
            # What was taken from it while it was fenced it must not take for its own.
            assert not (valid and host.version < self.fenced_at[host.node_id]), f"{host} is behind"
            table = self.reigns[-1].table
            known = table.liveness(self.clock_of(self.reigns[-1]))[host.node_id]
            if known.node_epoch == host.lease.node_epoch and known.condemned is Condemned.EXPIRED:
                assert not valid, f"{host} holds what the controller takes for expired"

    # -- Raft, as far as it matters

    def clock_of(self, reign: Reign) -> int:
        return self.hosts[reign.host].clock.at(self.now)

    def elect(self) -> None:
        host = self.rng.choice(
            [h for h in self.hosts.values() if h.up] or [self.hosts[NODE_IDS[0]]]
        )
        epoch = len(self.reigns) + 1
        version = len(self.log) - 1
        nodes = self.log[-1]
        table = LeaseTable(self.timings, epoch, nodes, version, host.clock.at(self.now))
        reign = Reign(epoch, host.node_id, table, version)
        self.reigns.append(reign)
        self.later(0, lambda: self.poll(reign))
        self.later(0, lambda: self.prove(reign))

    def depose(self) -> None:
        self.reigns[-1].end_ms = self.now
        self.elect()
        self.later(self.rng.uniform(0, 9_000), self.depose)

    def prove(self, reign: Reign) -> None:
        """Begin a round to a quorum; its end may be heard of after the deposition."""
        if self.now > reign.end_ms:
            return
        begun = self.clock_of(reign)
        delay = self.rng.uniform(0, min(self.delay_max, 300))
        self.later(delay, lambda: reign.table.on_contact(begun))
        self.later(100, lambda: self.prove(reign))

    def commit(self, node_id: NodeId, **changes: object) -> None:
        nodes = dict(self.log[-1])
        nodes[node_id] = replace(nodes[node_id], **changes)  # type: ignore[arg-type]
        self.log.append(nodes)

    # -- the controllers

    def poll(self, reign: Reign) -> None:
        now_ms = self.clock_of(reign)
        if self.now <= reign.end_ms:
            reign.version = len(self.log) - 1
        table = reign.table
        table.on_image(self.log[reign.version], reign.version, now_ms)
        table.poll(now_ms)
        for order in table.take_probes(now_ms):
            self.send(lambda o=order: self.probe(reign, o))
        if self.now <= reign.end_ms:
            for node_id, known in table.liveness(now_ms).items():
                fenced = self.log[-1][node_id].fenced
                if known.condemned is not None and not fenced:
                    if node_id in reign.fencing:
                        continue
                    reign.fencing[node_id] = None
                    epoch = known.node_epoch
                    self.later(
                        self.rng.uniform(0, 12_000),
                        lambda n=node_id, e=epoch: self.fence(reign, n, e),
                    )
                elif fenced and known.caught_up and self.rng.random() < 0.5:
                    self.commit(node_id, fenced=False)
        self.later(100 if self.rng.random() < 0.97 else 3_000, lambda: self.poll(reign))

    def is_stale(self, reign: Reign) -> bool:
        """Whether the machine refuses the commands of this controller: another has claimed."""
        return reign is not self.reigns[-1]

    def fence(self, reign: Reign, node_id: NodeId, epoch: int) -> None:
        """Apply a fence that was proposed a while ago, unless a new life has registered."""
        del reign.fencing[node_id]
        if self.is_stale(reign):
            return
        if self.log[-1][node_id].node_epoch == epoch and not self.log[-1][node_id].fenced:
            self.fences += 1
            self.commit(node_id, fenced=True)
            self.fenced_at[node_id] = len(self.log) - 1

    def probe(self, reign: Reign, order: ProbeOrder) -> None:
        host = self.hosts[order.node_id]
        result, epoch = Probed.REFUSED, None
        if self.rng.random() < 0.2:
            result = Probed.SILENT
        elif host.up:
            result, epoch = Probed.ANSWERED, host.lease.node_epoch
        delay = self.rng.uniform(0, 300)
        self.later(delay, lambda: reign.table.on_probe(order, result, self.clock_of(reign), epoch))

    # -- the nodes

    def beat(self, host: Host) -> None:
        self.later(self.rng.choice((10, 300, 300, 2_500)), lambda: self.beat(host))
        if not host.up:
            return
        if self.rng.random() < 0.01:
            host.lease.surrender()
        sequence = host.lease.on_send(host.clock.at(self.now))
        beat = Beat(
            node_id=host.node_id,
            node_epoch=host.lease.node_epoch,
            image_version=host.version,
            surrenders=host.lease.surrendered,
        )
        reign = self.rng.choice(self.reigns[-3:])
        life = host.life
        self.send(lambda: self.answer(reign, host, life, beat, sequence))

    def answer(self, reign: Reign, host: Host, life: int, beat: Beat, sequence: int) -> None:
        answer = reign.table.on_beat(beat, self.clock_of(reign))
        if isinstance(answer, NoLease):
            fenced = answer is NoLease.FENCED

            def refuse() -> None:
                if host.life == life:
                    host.lease.on_refusal(sequence, reign.epoch, fenced=fenced)

            self.send(refuse)
            return
        self.grants += 1
        self.deposed_grants += self.now > reign.end_ms
        grant = Grant(
            sequence=sequence,
            node_epoch=beat.node_epoch,
            controller_epoch=reign.epoch,
            lease_ms=answer,
        )

        def take() -> None:
            if host.life == life:
                host.lease.on_grant(grant)

        self.send(take)

    def learn(self, host: Host) -> None:
        self.later(self.rng.choice((50.0, 100.0, self.learn_ms)), lambda: self.learn(host))
        if host.up:
            host.version = self.rng.randint(host.version, len(self.log) - 1)

    def crash(self) -> None:
        host = self.rng.choice(list(self.hosts.values()))
        host.up = False
        host.life += 1
        self.later(self.rng.uniform(0, 6_000), lambda: self.restart(host))
        self.later(self.rng.uniform(0, 9_000), self.crash)

    def restart(self, host: Host) -> None:
        if host.up:
            return
        epoch = self.log[-1][host.node_id].node_epoch + 1
        self.commit(host.node_id, node_epoch=epoch, fenced=True)
        host.lease = OwnLease()
        host.lease.begin(epoch)
        host.version = len(self.log) - 1
        host.up = True
