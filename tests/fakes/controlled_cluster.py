"""A cluster in memory with a planner at its controller, and the liveness that it shows."""

from dataclasses import replace

from dlog.types import NodeId
from dlogd.controller.planner import Liveness, NodeLiveness, Planner, PlannerSettings
from dlogd.metadata.commands.codec import AlterAssignments, ClaimController, Reassignment
from dlogd.metadata.state.image import ClusterImage
from tests.fakes.metadata_cluster import FakeCluster

LEASE_MS = 1_000
SETTINGS = PlannerSettings(
    scan_interval_ms=1_000, settled_ms=5_000, unclean_after_ms=4_000, refill_after_ms=60_000
)
QUICK = replace(SETTINGS, scan_interval_ms=0, elections_max=2, reassignments_max=2)


def observed(
    liveness: Liveness, image: ClusterImage, now_ms: int, lease_ms: int
) -> dict[NodeId, NodeLiveness]:
    """Return liveness with an entry for each node of the image, in its present life.

    A life that is new to this controller counts as leased for one lease: its node may hold one from
    the controller before, or is about to send its first heartbeat.
    """
    found = {}
    for node_id, node in image.nodes.items():
        known = liveness.get(node_id)
        if known is None or known.node_epoch != node.node_epoch:
            known = NodeLiveness(node_epoch=node.node_epoch, lease_end_ms=now_ms + lease_ms)
        found[node_id] = known
    return found


class Controlled(FakeCluster):
    """A cluster whose node 1 is the controller; processes are up or not."""

    def __init__(self, nodes: int, settings: PlannerSettings = SETTINGS) -> None:
        super().__init__(nodes, racks=("a", "b", "c"))
        self.now_ms = 0
        self.up = {NodeId(number) for number in range(1, nodes + 1)}
        self.stopping: set[NodeId] = set()
        self.liveness: Liveness = {}
        claim = ClaimController(
            command_id=self.new_id(), node_id=NodeId(1), node_epoch=1, controller_epoch=0
        )
        self.planner = Planner(self.apply(claim), self.new_id, settings)

    def tick(self, passed_ms: int = 500) -> str:
        """Let time pass, take heartbeats, plan, and apply the plan."""
        self.now_ms += passed_ms
        self.liveness = observed(self.liveness, self.image, self.now_ms, LEASE_MS)
        heard = {
            node_id: NodeLiveness(
                node_epoch=known.node_epoch,
                lease_end_ms=self.now_ms + LEASE_MS,
                heard=True,
                ready=True,
                image_version=self.image.version,
                wants_shutdown=node_id in self.stopping,
            )
            for node_id, known in self.liveness.items()
            if node_id in self.up
        }
        self.liveness = {**self.liveness, **heard}
        plan = self.planner.plan(self.image, self.liveness, self.now_ms)
        for command in plan.commands:
            self.apply(command)
        return plan.sentence

    def run(self, seconds: float) -> None:
        """Let time pass; followers catch up after each tick."""
        for _ in range(int(seconds * 2)):
            self.tick()
            self.catch_up()


def reassign(cluster: FakeCluster, name: str, *replicas: int) -> None:
    """Move partition 0 of a topic to these replicas."""
    wanted = Reassignment(
        topic_id=cluster.image.topics[name].topic_id,
        partition=0,
        replicas=tuple(map(NodeId, replicas)),
    )
    cluster.apply(AlterAssignments(command_id=cluster.new_id(), reassignments=(wanted,)))
