"""What the plain model of the metadata machine knows, and its rules of leaders and ISRs.

Written from KIP-497, 841, 858, 903 and 966, not from the machine.
`tests.fakes.metadata_model` has the commands.
"""

from collections.abc import Iterable
from typing import Any

from dlogd.metadata.state.image import ClusterImage


class RefusedError(Exception):
    """The command is refused with the error of this name."""


def refuse_if(condition: object, name: str) -> None:
    if condition:
        raise RefusedError(name)


class Partition:
    def __init__(
        self, replicas: Iterable[int], isr: Iterable[int], leader: int, leader_epoch: int
    ) -> None:
        self.replicas = list(replicas)
        self.isr, self.leader = set(isr), leader
        self.leader_epoch, self.partition_epoch = leader_epoch, 0
        self.elr: set[int] = set()
        self.adding: set[int] = set()
        self.removing: set[int] = set()
        self.offline: set[int] = set()
        self.last = -1

    def state(self) -> tuple[Any, ...]:
        sets = (self.isr, self.elr, self.adding, self.removing, self.offline)
        return (tuple(self.replicas), *map(frozenset, sets), self.leader, self.last)


class Rules:
    def __init__(self) -> None:
        self.version = 0
        self.nodes: dict[int, dict[str, Any]] = {}
        self.topics: dict[Any, dict[str, Any]] = {}
        self.configs: dict[str, str] = {}
        self.controller = 0
        self.unclean = 0
        # Above every epoch of a partition that was deleted; clusters of the model begin at level 4.
        self.floor = 0
        # Owner, token, node, since when, until when.
        self.lock: tuple[Any, ...] | None = None

    # -- what is compared

    def view(self) -> dict[str, Any]:
        return {
            "nodes": {
                n: (d["epoch"], d["fenced"], d["returning"], d["stopping"], d["drain"])
                for n, d in self.nodes.items()
            },
            "topics": {
                t["name"]: [(*p.state(), p.leader_epoch, p.partition_epoch) for p in t["parts"]]
                for t in self.topics.values()
            },
            "controller": self.controller,
            "unclean": self.unclean,
            "floor": self.floor,
            "lock": self.lock,
        }

    @staticmethod
    def view_of(image: ClusterImage) -> dict[str, Any]:
        return {
            "nodes": {
                n: (d.node_epoch, d.fenced, d.returning, d.shutting_down, d.drain)
                for n, d in image.nodes.items()
            },
            "topics": {
                topic.name: [
                    (
                        p.replicas,
                        *map(frozenset, (p.isr, p.elr, p.adding, p.removing, p.offline)),
                        p.leader,
                        p.last_leader,
                        p.leader_epoch,
                        p.partition_epoch,
                    )
                    for p in topic.partitions
                ]
                for topic in image.topics.values()
            },
            "controller": image.controller.epoch,
            "unclean": image.unclean_elections,
            "floor": image.epoch_floor,
            "lock": None
            if image.maintenance is None
            else tuple(
                getattr(image.maintenance, each)
                for each in ("owner", "token", "node_id", "since_ms", "expires_ms")
            ),
        }

    # -- rules

    def expect_permitted(self, permit: Any) -> None:
        if self.lock is not None and (permit is None or permit.token != self.lock[1]):
            refuse_if(permit is None or permit.now_ms < self.lock[4], "POLICY_VIOLATION")

    def config(self, topic: dict[str, Any], key: str, default: str) -> str:
        return str(topic["configs"].get(key, self.configs.get(key, default)))

    def active(self, node_id: int) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and not node["fenced"] and not node["stopping"]

    def min_isr(self, topic: dict[str, Any], replicas: int) -> int:
        return max(1, min(int(self.config(topic, "min.insync.replicas", "1")), replicas))

    def settle(
        self,
        topic: dict[str, Any],
        p: Partition,
        *,
        gone: Iterable[int] = (),
        missing: int | None = None,
        preferred: bool = False,
        unclean: bool = False,
        before: tuple[Any, ...] | None = None,
    ) -> None:
        before = before or p.state()
        gone = set(gone) | ({missing} if missing is not None else set())
        p.isr = {n for n in p.isr if n in p.replicas} - gone
        self.end_reassignment(topic, p)
        had = (set(before[1]) | set(before[2])) - gone  # in sync or eligible until now
        p.elr = self.eligible(topic, p, had)
        last = last_leader(before)
        last = -1 if last == missing else last
        old_leader, p.last = p.leader, -1
        able = [n for n in p.replicas if self.active(n) and n not in p.offline]
        able.sort(key=lambda n: bool(self.nodes[n]["drain"]))
        in_sync = [n for n in able if n in p.isr]
        if in_sync:
            self.choose(p, in_sync, preferred)
        elif any(n in p.elr for n in able):
            p.leader = next(n for n in able if n in p.elr)
            p.isr = {p.leader}
            p.elr = self.eligible(topic, p, had)
        elif (not p.isr and not p.elr and last in able) or (unclean and able):
            able.sort(key=lambda n: n in p.adding)
            p.leader = last if not p.isr and not p.elr and last in able else able[0]
            p.isr, p.elr = {p.leader}, set()
            self.unclean += 1
        else:
            p.leader = -1
            p.last = last if not p.isr and not p.elr and last in p.replicas else -1
        if p.state() != before:
            p.partition_epoch += 1
            p.leader_epoch += p.leader != old_leader or not set(before[0]) <= set(p.replicas)

    def choose(self, p: Partition, in_sync: list[int], preferred: bool) -> None:
        best = in_sync[0]
        if p.leader not in in_sync or (
            preferred and (best == p.replicas[0] or self.nodes[p.leader]["drain"])
        ):
            p.leader = best

    def end_reassignment(self, topic: dict[str, Any], p: Partition) -> None:
        kept = [n for n in p.replicas if n not in p.removing]
        stay = p.isr & set(kept)
        fit = {n for n in stay if self.active(n) and n not in p.offline}
        if p.adding <= stay and fit and len(stay) >= self.min_isr(topic, len(kept)):
            p.replicas, p.adding, p.removing = kept, set(), set()
            p.isr &= set(kept)
            p.offline &= set(kept)

    def eligible(self, topic: dict[str, Any], p: Partition, had: set[int]) -> set[int]:
        if len(p.isr) >= self.min_isr(topic, len(p.replicas) - len(p.adding)):
            return set()
        return (had & set(p.replicas)) - p.isr

    def each(self) -> list[tuple[dict[str, Any], int, Partition]]:
        return [(t, i, p) for t in self.topics.values() for i, p in enumerate(t["parts"])]


def last_leader(state: tuple[Any, ...]) -> int:
    """Return who led last, or was in sync or eligible last, before a change."""
    replicas, isr, elr, leader, last = state[0], state[1], state[2], state[6], state[7]
    if last != -1 or leader != -1:
        return int(last if last != -1 else leader)
    order = [n for n in replicas if n in isr] + [n for n in replicas if n in elr]
    return int(order[0]) if order else -1
