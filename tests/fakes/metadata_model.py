"""A slow and plain model of the metadata machine, to compare it with.

Written from the rules (KIP-497, 841, 858, 903, 966; docs/decisions), not from the machine: sets and
dictionaries that are changed in place, everything looked at each time. From level 2 on. `apply`
returns the value of an applied command, or the name of the error.
"""

import re
from typing import Any

from dlog.errors import ERRORS
from dlogd.metadata.commands import codec as c
from dlogd.metadata.state.image import Drain
from tests.fakes.metadata_rules import Partition, RefusedError, Rules, refuse_if


class Model(Rules):
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
            if (p.leader == -1 or p.removing) and command.node_id in p.replicas:
                before = p.partition_epoch
                self.settle(topic, p)
                count += p.partition_epoch != before
        return count

    def shut_down_node(self, command: c.ShutDownNode) -> int:
        self.life(command.node_id, command.node_epoch)["stopping"] = True
        return self.leave({int(command.node_id)})

    def drain_node(self, command: c.DrainNode) -> int:
        refuse_if(command.node_id not in self.nodes, "BROKER_ID_NOT_REGISTERED")
        if command.drain:
            self.expect_permitted(command.permit)
        self.nodes[command.node_id]["drain"] = command.drain
        return 0

    def remove_node(self, command: c.RemoveNode) -> int:
        node = self.life(command.node_id, command.node_epoch)
        self.expect_permitted(command.permit)
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
            parts.append(Partition(replicas, isr, (free or isr)[0], self.floor))
        self.topics[command.topic_id] = {
            "name": command.name,
            "id": command.topic_id,
            "configs": dict(command.configs),
            "parts": parts,
        }
        return len(parts)

    def delete_topic(self, command: c.DeleteTopic) -> int:
        refuse_if(command.topic_id not in self.topics, "UNKNOWN_TOPIC_ID")
        return self._delete(command.topic_id)

    def _delete(self, topic_id: Any) -> int:
        parts = self.topics.pop(topic_id)["parts"]
        self.floor = max(self.floor, *(p.leader_epoch + 1 for p in parts))
        return len(parts)

    def delete_topics(self, command: c.DeleteTopics) -> int:
        refuse_if(not command.topic_ids, "INVALID_REQUEST")
        refuse_if(len(set(command.topic_ids)) < len(command.topic_ids), "INVALID_REQUEST")
        refuse_if(any(each not in self.topics for each in command.topic_ids), "UNKNOWN_TOPIC_ID")
        return sum(self._delete(each) for each in command.topic_ids)

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
            holders = p.isr or p.elr or {p.last} - {-1}
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

    def hold_maintenance(self, command: c.HoldMaintenance) -> int:
        refuse_if(not 0 < len(command.owner) < 256, "INVALID_REQUEST")
        refuse_if(not 0 < command.lifetime_ms <= 3_600_000, "INVALID_REQUEST")
        now_ms, since_ms = command.now_ms, command.now_ms
        if self.lock is not None and now_ms < self.lock[4]:
            refuse_if(self.lock[1] != command.token, "POLICY_VIOLATION")
            since_ms = self.lock[3]
        until_ms = now_ms + command.lifetime_ms
        self.lock = (command.owner, command.token, command.node_id, since_ms, until_ms)
        return since_ms

    def release_maintenance(self, command: c.ReleaseMaintenance) -> int:
        if self.lock is not None and command.token is not None:
            refuse_if(command.token != self.lock[1], "POLICY_VIOLATION")
        self.lock = None
        return 0

    def claim_controller(self, command: c.ClaimController) -> int:
        self.life(command.node_id, command.node_epoch)
        refuse_if(command.controller_epoch != self.controller, "NOT_CONTROLLER")
        self.controller += 1
        return self.controller


def error_name(code: int) -> str:
    return ERRORS[code].name


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
