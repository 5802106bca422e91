"""Whether a cluster has come back whole, seen from above: nodes, images, leaders, open logs."""

from typing import Any

from dlogd.metadata.state.image import ClusterImage
from dlogd.status.pages import ACTIVE
from tests.simulation.fleet.host import FleetHost


class Wholeness:
    """Looks at the hosts of one run; each question is answered by what is wrong, or None."""

    def __init__(self, hosts: list[FleetHost]) -> None:
        self.hosts = hosts

    def missing(self, tasks: list[Any]) -> str | None:
        """Say what is still missing, None when nothing is."""
        for host in self.hosts:
            if host.state != "up" or host.broker is None or host.broker.phase != ACTIVE:
                phase = host.broker.phase if host.broker is not None else "down"
                return f"{host.name} is not up: {host.state}, {phase}; {self._describe()}"
            if not host.holds_lease():
                return f"{host.name} has no lease; {self._describe()}"
            if host.is_wiped:
                return f"{host.name} was not replaced as a voter; {self._describe()}"
        leaders = [h for h in self.hosts if h.store and h.store.core.is_active_leader]
        if len(leaders) != 1:
            return f"{len(leaders)} leaders; {self._describe()}"
        images = [host.broker.store.image for host in self.hosts]  # type: ignore[union-attr]
        if len({image.version for image in images}) != 1:
            return f"image versions {[image.version for image in images]}; {self._describe()}"
        if any(not task.done() for task in tasks):
            return "a call of a client did not end"
        return self._is_image_whole(images[0], leaders[0]) or self._are_logs_open(images[0])

    def _is_image_whole(self, image: ClusterImage, leader: FleetHost) -> str | None:
        if image.controller.node_id != leader.node_id:
            return f"{image.controller} is not the leader {leader.name}"
        for host in self.hosts:
            node = image.nodes.get(host.node_id)  # type: ignore[call-overload]
            if node is None or not node.active or node.drain:
                return f"{host.name} is not active: {node}"
        wiped = {host.node_id for host in self.hosts if host.wipes}
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if not partition.has_leader:
                    # Without a leader there is nobody from whom a new disk could be filled.
                    if not wiped & set(partition.replicas):
                        return f"{topic.name}-{number} has no leader: {partition}"
                elif set(partition.isr) != set(partition.replicas):
                    return f"the ISR of {topic.name}-{number} is not whole: {partition}"
                elif partition.adding or partition.removing:
                    return f"the reassignment of {topic.name}-{number} did not end: {partition}"
        return None

    def _are_logs_open(self, image: ClusterImage) -> str | None:
        for host in self.hosts:
            assert host.broker is not None and host.broker.replicas is not None
            mine = {
                (topic.topic_id, number): host.node_id in partition.offline
                for topic in image.topics.values()
                for number, partition in enumerate(topic.partitions)
                if host.node_id in partition.replicas
            }
            found = set(host.broker.replicas.by_id)
            missing = {key for key, is_offline in mine.items() if not is_offline} - found
            if missing:
                return f"{host.name} has not opened {len(missing)} logs of {len(mine)}"
            if found - mine.keys():
                return f"{host.name} has {len(found - mine.keys())} logs open that are not its own"
        return None

    def _describe(self) -> list[Any]:
        found = []
        for host in self.hosts:
            store = host.store
            facts = None
            if store is not None:
                core = store.core
                facts = (
                    *(store.role, store.term, store.leader_id, core.applied_index),
                    *(core.commit_index, store.log.last_index, list(core.connected)),
                    *(store.voters.node_ids, store.image.version, store.image.controller),
                )
            found.append((host.name, host.state, facts))
        return found

    def not_given_up(self, lost: set[int], rest: list[FleetHost]) -> str | None:
        """Say which live node has not heard that others are gone, or has given up a live one."""
        for host in rest:
            assert host.broker is not None and host.broker.store is not None
            image = host.broker.store.image
            if image.controller.node_id in lost:
                return f"{host.name} knows no other controller than {image.controller}"
            for node_id, node in image.nodes.items():
                if node.fenced != (node_id in lost):
                    return f"{host.name} takes node {node_id} for fenced={node.fenced}"
            for topic in image.topics.values():
                for number, partition in enumerate(topic.partitions):
                    left = set(partition.isr) - lost
                    if left and partition.leader not in left:
                        return f"{topic.name}-{number} is led by nobody that lives: {partition}"
        return None
