"""Several servers that are one cluster: started and killed together, or one by one.

All on loopback, or each on a host of its own (`bench.peers.hosts`), which can be lost.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.load import cluster as wire
from bench.peers.dlog import DLOGD
from bench.peers.hosts import Hosts
from bench.peers.kafka import KafkaServer
from bench.peers.nats import NatsRoutes, NatsServer
from bench.peers.server import HOST, Server, StartError, Usage, free_port
from dlogctl.sandbox.layout import NodeLayout, free_ports, plan_nodes

NODES = 3
FORM_TIMEOUT_S = 90


class DlogNode(Server):
    """One dlogd of a cluster, configured as `dlogctl sandbox --nodes` does it."""

    name = "dlog"

    def __init__(self, layout: NodeLayout, overrides: dict[str, str]) -> None:
        super().__init__(layout.folder, layout.port)
        self._layout = layout
        self._overrides = overrides

    def prepare(self) -> None:
        """Write the configuration."""
        self._layout.write_config(self._overrides)

    def command(self) -> Sequence[str]:
        """Return the command line."""
        return [str(DLOGD), "--config", str(self._layout.config_path)]


class Cluster(Server):
    """Nodes in the order of their ids, which begin with 1. Clients are given the first one."""

    replicas = NODES
    topic_configs: Mapping[str, str] = {"min.insync.replicas": "2"}

    def __init__(self, folder: Path, nodes: Sequence[Server], hosts: Hosts | None = None) -> None:
        """`hosts` are entered by the caller before the start, and left after the end."""
        super().__init__(folder, nodes[0].port)
        self.nodes = nodes
        self.hosts = hosts
        for number, node in enumerate(nodes, 1):
            node.host = _outside(hosts, number)
            node.inside = () if hosts is None else hosts.inside(number)
        self.host = nodes[0].host

    def number_of(self, node: Server) -> int:
        """Return the id of a node, which is also the number of its host."""
        return self.nodes.index(node) + 1

    def start(self, timeout_s: float = FORM_TIMEOUT_S) -> None:
        """Start all nodes at once; return when each knows all of them and who is controller."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            node.install()
            node.folder.mkdir(parents=True, exist_ok=True)
            node.prepare()
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait(node.ready, timeout_s)
        for node in self.nodes:
            node.wait(partial(self._is_formed, node), timeout_s)

    @property
    def all_nodes(self) -> str:
        """The addresses of all nodes, for clients that outlive some of them."""
        return ",".join(node.bootstrap for node in self.nodes)

    def restart(self, node: Server) -> None:
        """Start a node that was killed; return when all know each other again."""
        node.launch()
        self.wait_formed()

    def wait_formed(self) -> None:
        """Wait until all nodes know all of them; ask seldom, who is measured has other work."""
        for each in self.nodes:
            each.wait(partial(self._is_formed, each), FORM_TIMEOUT_S, every_s=0.05)

    def _is_formed(self, node: Server) -> bool:
        try:
            with wire.connect(node.bootstrap) as connection:
                return len(wire.picture(connection).nodes) == len(self.nodes)
        except (OSError, wire.LoadError):
            return False

    def controller(self) -> Server:
        """Return the node that is controller."""
        for node in self.nodes:
            try:
                with wire.connect(node.bootstrap) as connection:
                    return self.nodes[wire.controller_id(connection) - 1]
            except (OSError, wire.LoadError, IndexError):
                continue
        raise StartError(f"{self.name}: no node tells who is controller")

    def usage(self) -> Usage:
        """Return what all nodes have used together."""
        found = [node.usage() for node in self.nodes]
        return Usage(
            cpu_seconds=sum(each.cpu_seconds for each in found),
            rss_bytes=sum(each.rss_bytes for each in found),
            rss_bytes_max=sum(each.rss_bytes_max for each in found),
        )

    def kill(self) -> None:
        """End all processes with SIGKILL."""
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        """End all processes as an operator would."""
        for node in self.nodes:
            node.stop()


def _outside(hosts: Hosts | None, number: int) -> str:
    return HOST if hosts is None else hosts.outside(number)


def _inside(hosts: Hosts | None, number: int) -> str:
    return HOST if hosts is None else hosts.address(number)


class DlogCluster(Cluster):
    """Three dlogd at their defaults, all of them voters."""

    name = "dlog"

    def __init__(
        self,
        folder: Path,
        overrides: dict[str, str] | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        layouts = plan_nodes(folder, free_ports(NODES), free_ports(NODES))
        nodes = [
            DlogNode(layout, {**_addresses(layout, hosts), **(overrides or {})})
            for layout in layouts
        ]
        super().__init__(folder, nodes, hosts)


def _addresses(layout: NodeLayout, hosts: Hosts | None) -> dict[str, str]:
    """Return where a node listens that has a host of its own."""
    if hosts is None:
        return {}
    own, outside = hosts.address(layout.node), hosts.outside(layout.node)
    voters = [f"{n}@{hosts.address(n)}:{port}" for n, port in enumerate(layout.raft_ports, 1)]
    return {
        "listeners": json.dumps([f"{outside}:{layout.port}"]),
        "http.address": f"{outside}:0",
        "internal.listener": f"{own}:0",
        "controllers": json.dumps(voters),
        "metadata.listener": f"{own}:{layout.raft_ports[layout.node - 1]}",
    }


class KafkaCluster(Cluster):
    """Three Kafka nodes, each broker and controller, otherwise at the defaults of its package."""

    name = "kafka"

    def __init__(self, folder: Path, hosts: Hosts | None = None) -> None:
        ports = [(free_port(), free_port()) for _ in range(NODES)]
        voters = ",".join(
            f"{n}@{_inside(hosts, n)}:{quorum}" for n, (_, quorum) in enumerate(ports, 1)
        )
        nodes = []
        for number, (port, quorum) in enumerate(ports, 1):
            brokers = f"PLAINTEXT://{_outside(hosts, number)}:{port}"
            own = {
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "listeners": f"{brokers},CONTROLLER://{_inside(hosts, number)}:{quorum}",
            }
            nodes.append(KafkaServer(folder / f"node-{number}", port, own))
        super().__init__(folder, nodes, hosts)


class NatsCluster(Cluster):
    """Three NATS servers that keep each message three times; `sync` is their `sync_interval`."""

    name = "nats"

    def __init__(self, folder: Path, sync: str | None = None) -> None:
        ports = [(free_port(), free_port()) for _ in range(NODES)]
        routes = [f"nats://{HOST}:{route}" for _, route in ports]
        nodes = [
            NatsServer(folder / f"node-{number}", port, sync, NatsRoutes(number, route, routes))
            for number, (port, route) in enumerate(ports, 1)
        ]
        super().__init__(folder, nodes)

    def _is_formed(self, node: Server) -> bool:
        # There is nothing to ask for without a client of an account: load programs repeat.
        return node.ready()
