"""A slow and plain model of the metadata machine, to compare it with.

Written from the rules (KIP-497, 841, 858, 903, 966; docs/decisions), not from the machine: sets and
dictionaries that are changed in place, everything looked at each time. From level 2 on. `apply`
returns the value of an applied command, or the name of the error.
"""

import re
from collections.abc import Iterable
from typing import Any

from dlog.errors import ERRORS
from dlogd.metadata import commands as c
from dlogd.metadata.image import ClusterImage, Drain


class RefusedError(Exception):
    """The command is refused with the error of this name."""


def refuse_if(condition: object, name: str) -> None:
    if condition:
        raise RefusedError(name)


class Partition:
    def __init__(self, replicas: Iterable[int], isr: Iterable[int], leader: int) -> None:
        self.replicas = list(replicas)
        self.isr, self.leader = set(isr), leader
        self.leader_epoch = self.partition_epoch = 0
        self.elr: set[int] = set()
        self.adding: set[int] = set()
        self.removing: set[int] = set()
        self.offline: set[int] = set()
        self.last = -1

    def state(self) -> tuple[Any, ...]:
        sets = (self.isr, self.elr, self.adding, self.removing, self.offline)
        return (tuple(self.replicas), *map(frozenset, sets), self.leader, self.last)


class Model:
    def __init__(self) -> None:
        self.version = 0
        self.nodes: dict[int, dict[str, Any]] = {}
        self.topics: dict[Any, dict[str, Any]] = {}
        self.configs: dict[str, str] = {}
        self.controller = 0
        self.unclean = 0

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
        }

    # -- rules

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

    # -- commands

    def apply(self, command: Any) -> int | str:
        self.version += 1
        plain = command
        if isinstance(command, c.Guarded):
            if self.version > command.version_max:
                return "REQUEST_TIMED_OUT"
            if command.controller_epoch not in (-1, self.controller):
                return "NOT_CONTROLLER"
            plain = command.command
        try:
            return int(getattr(self, _snake(type(plain).__name__))(plain))
        except RefusedError as refusal:
            return str(refusal)

    def life(self, node_id: int, epoch: int) -> dict[str, Any]:
        refuse_if(node_id not in self.nodes, "BROKER_ID_NOT_REGISTERED")
        refuse_if(self.nodes[node_id]["epoch"] != epoch, "STALE_BROKER_EPOCH")
        return self.nodes[node_id]

    def register_node(self, command: c.RegisterNode) -> int:
        known = self.nodes.get(command.node_id)
        proved = (
            known is not None
            and command.proof != c.Proof.NONE
            and command.previous_epoch == known["epoch"]
            and set(known["dirs"]) <= {*command.directory_ids, *command.failed_directory_ids}
        )
        n = command.node_id
        self.nodes[n] = {
            "epoch": self.version,
            "fenced": True,
            "returning": proved,
            "stopping": False,
            "drain": known["drain"] if known else Drain.NONE,
            "dirs": command.directory_ids,
        }
        self.nodes = dict(sorted(self.nodes.items()))

        def named(partitions: c.PartitionSet) -> set[Any]:
            return {(t, i) for t, numbers in partitions for i in numbers}

        for topic, i, p in self.each():
            if n not in p.replicas:
                continue
            key, before = (topic["id"], i), p.state()
            p.offline.discard(n)
            lost = not proved or key in named(command.unproven) | named(command.offline)
            if key in named(command.offline):
                p.offline.add(n)
            if command.proof == c.Proof.FLUSHED:
                lost = lost or self.config(topic, "flush.policy", "always") != "always"
            missing = n if key in named(command.missing) else None
            self.settle(topic, p, gone={n} if lost else (), missing=missing, before=before)
        return self.version

    def leave(self, nodes: set[int]) -> int:
        count = 0
        for topic, _, p in self.each():
            if p.isr & nodes:
                before = p.state()
                p.isr -= nodes
                self.settle(topic, p, before=before)
                count += 1
        return count

    def fence_nodes(self, command: c.FenceNodes) -> int:
        for node_id, epoch in command.nodes:
            self.life(node_id, epoch)
        for node_id, _ in command.nodes:
            self.nodes[node_id].update(fenced=True, returning=False)
        return self.leave({int(node_id) for node_id, _ in command.nodes})

    def unfence_node(self, command: c.UnfenceNode) -> int:
        node = self.life(command.node_id, command.node_epoch)
        refuse_if(node["stopping"], "INVALID_REQUEST")
        if not node["fenced"]:
            return 0
        node.update(fenced=False, returning=False)
        count = 0
        for topic, _, p in self.each():
            if p.leader == -1 and command.node_id in p.replicas:
                before = p.partition_epoch
                self.settle(topic, p)
                count += p.partition_epoch != before
        return count

    def shut_down_node(self, command: c.ShutDownNode) -> int:
        self.life(command.node_id, command.node_epoch)["stopping"] = True
        return self.leave({int(command.node_id)})

    def drain_node(self, command: c.DrainNode) -> int:
        refuse_if(command.node_id not in self.nodes, "BROKER_ID_NOT_REGISTERED")
        self.nodes[command.node_id]["drain"] = command.drain
        return 0

    def remove_node(self, command: c.RemoveNode) -> int:
        node = self.life(command.node_id, command.node_epoch)
        refuse_if(not node["fenced"], "INVALID_REQUEST")
        refuse_if(any(command.node_id in p.replicas for _, _, p in self.each()), "INVALID_REQUEST")
        del self.nodes[command.node_id]
        return 0

    def report_replicas(self, command: c.ReportReplicas) -> int:
        self.life(command.node_id, command.node_epoch)
        n, count = int(command.node_id), 0
        for partitions, goes in ((command.offline, True), (command.online, False)):
            for topic_id, numbers in partitions:
                for i in numbers:
                    topic = self.topics.get(topic_id)
                    if topic is None or i >= len(topic["parts"]):
                        continue
                    p = topic["parts"][i]
                    if n not in p.replicas or (not goes and n not in p.offline):
                        continue
                    before, epoch = p.state(), p.partition_epoch
                    p.offline = p.offline | {n} if goes else p.offline - {n}
                    self.settle(topic, p, gone={n} if goes else (), before=before)
                    count += p.partition_epoch != epoch
        return count

    def create_topic(self, command: c.CreateTopic) -> int:
        refuse_if(
            any(t["name"] == command.name for t in self.topics.values()), "TOPIC_ALREADY_EXISTS"
        )
        refuse_if(command.topic_id in self.topics, "INVALID_REQUEST")
        parts = []
        for replicas in command.assignments:
            refuse_if(len(replicas) != len(command.assignments[0]), "INVALID_REPLICA_ASSIGNMENT")
            refuse_if(any(n not in self.nodes for n in replicas), "INVALID_REPLICA_ASSIGNMENT")
            isr = [n for n in replicas if self.active(n)]
            refuse_if(not isr, "INVALID_REPLICA_ASSIGNMENT")
            free = [n for n in isr if not self.nodes[n]["drain"]]
            parts.append(Partition(replicas, isr, (free or isr)[0]))
        self.topics[command.topic_id] = {
            "name": command.name,
            "id": command.topic_id,
            "configs": dict(command.configs),
            "parts": parts,
        }
        return len(parts)

    def delete_topic(self, command: c.DeleteTopic) -> int:
        refuse_if(command.topic_id not in self.topics, "UNKNOWN_TOPIC_ID")
        return len(self.topics.pop(command.topic_id)["parts"])

    def delete_topics(self, command: c.DeleteTopics) -> int:
        refuse_if(not command.topic_ids, "INVALID_REQUEST")
        refuse_if(len(set(command.topic_ids)) < len(command.topic_ids), "INVALID_REQUEST")
        refuse_if(any(each not in self.topics for each in command.topic_ids), "UNKNOWN_TOPIC_ID")
        return sum(len(self.topics.pop(each)["parts"]) for each in command.topic_ids)

    def alter_configs(self, command: c.AlterConfigs) -> int:
        refuse_if(command.topic_id not in (None, *self.topics), "UNKNOWN_TOPIC_ID")
        topics = [t for t in self.topics.values() if command.topic_id in (None, t["id"])]
        configs = self.configs if command.topic_id is None else topics[0]["configs"]
        old = configs.get("min.insync.replicas")
        for change in command.changes:
            configs.pop(change.key, None)
            if change.value is not None:
                configs[change.key] = change.value
        if configs.get("min.insync.replicas") != old:
            for topic in topics:
                for p in topic["parts"]:
                    if p.elr or p.adding or p.removing:
                        self.settle(topic, p)
        return 0

    def alter_partition(self, command: c.AlterPartition) -> int:
        self.life(command.node_id, command.node_epoch)
        topic = self.topics.get(command.topic_id)
        refuse_if(topic is None, "UNKNOWN_TOPIC_ID")
        assert topic is not None
        refuse_if(command.partition >= len(topic["parts"]), "UNKNOWN_TOPIC_OR_PARTITION")
        p = topic["parts"][command.partition]
        refuse_if(command.leader_epoch < p.leader_epoch, "FENCED_LEADER_EPOCH")
        refuse_if(command.leader_epoch > p.leader_epoch, "INVALID_REQUEST")
        refuse_if(command.partition_epoch > p.partition_epoch, "INVALID_REQUEST")
        refuse_if(command.node_id != p.leader, "INVALID_REQUEST")
        refuse_if(command.partition_epoch < p.partition_epoch, "INVALID_UPDATE_VERSION")
        isr = [int(n) for n, _ in command.isr]
        refuse_if(len(set(isr)) < len(isr) or not set(isr) <= set(p.replicas), "INVALID_REQUEST")
        refuse_if(command.node_id not in isr, "INVALID_REQUEST")
        for n, epoch in command.isr:
            if n not in p.isr:
                fit = self.active(n) and self.nodes[n]["epoch"] == epoch and n not in p.offline
                refuse_if(not fit, "INELIGIBLE_REPLICA")
        before = p.state()
        p.isr = set(isr)
        self.settle(topic, p, before=before)
        return p.partition_epoch

    def elect_leaders(self, command: c.ElectLeaders) -> int:
        count = 0
        kind = command.election
        for topic_id, numbers in command.partitions:
            topic = self.topics.get(topic_id)
            for i in dict.fromkeys(numbers):
                if topic is None or i >= len(topic["parts"]):
                    continue
                allowed = self.config(topic, "unclean.leader.election.enable", "false") == "true"
                if kind == c.ElectionKind.UNCLEAN_IF_ALLOWED and not allowed:
                    continue
                p = topic["parts"][i]
                if kind != c.ElectionKind.PREFERRED and p.leader != -1:
                    continue
                leader, first = p.leader, kind == c.ElectionKind.PREFERRED
                self.settle(topic, p, preferred=first, unclean=not first)
                count += p.leader != leader
        return count

    def alter_assignments(self, command: c.AlterAssignments) -> int:
        plans = []
        for each in command.reassignments:
            topic = self.topics.get(each.topic_id)
            refuse_if(topic is None, "UNKNOWN_TOPIC_ID")
            assert topic is not None
            refuse_if(each.partition >= len(topic["parts"]), "UNKNOWN_TOPIC_OR_PARTITION")
            p = topic["parts"][each.partition]
            refuse_if(any(p is other for _, other, _ in plans), "INVALID_REQUEST")
            settled = [n for n in p.replicas if n not in p.adding]
            if each.replicas is None:
                refuse_if(not p.adding and not p.removing, "NO_REASSIGNMENT_IN_PROGRESS")
                target = settled
            else:
                target = [int(n) for n in each.replicas]
                wrong = not target or len(set(target)) < len(target)
                wrong = wrong or any(n not in self.nodes for n in target)
                refuse_if(wrong, "INVALID_REPLICA_ASSIGNMENT")
            holders = p.isr | p.elr
            left = holders & {*target, *settled}
            refuse_if(holders and not left, "INVALID_REPLICA_ASSIGNMENT")
            plans.append((topic, p, target))
        count = 0
        for topic, p, target in plans:
            before, epoch = p.state(), p.partition_epoch
            settled = [n for n in p.replicas if n not in p.adding]
            p.replicas = target + [n for n in settled if n not in target]
            p.adding = set(target) - set(settled)
            p.removing = set(settled) - set(target)
            p.offline &= set(p.replicas)
            self.settle(topic, p, before=before)
            count += p.partition_epoch != epoch
        return count

    def claim_controller(self, command: c.ClaimController) -> int:
        self.life(command.node_id, command.node_epoch)
        refuse_if(command.controller_epoch != self.controller, "NOT_CONTROLLER")
        self.controller += 1
        return self.controller


def last_leader(state: tuple[Any, ...]) -> int:
    """Return who led last, or was in sync or eligible last, before a change."""
    replicas, isr, elr, leader, last = state[0], state[1], state[2], state[6], state[7]
    if last != -1 or leader != -1:
        return int(last if last != -1 else leader)
    order = [n for n in replicas if n in isr] + [n for n in replicas if n in elr]
    return int(order[0]) if order else -1


def error_name(code: int) -> str:
    return ERRORS[code].name


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
