"""Clusters of three nodes for tests that are about more than one: dlog's sandbox, Apache Kafka."""

import os
import signal
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

from bench.peers.kafka import KafkaServer
from bench.peers.server import HOST, free_port
from scripts.sandbox import running_sandbox

NODES = (1, 2, 3)
_LAST_WORDS_MAX = 2_000


def rack_of(node: int) -> str:
    """Return the rack of a node, where nodes have one each."""
    return f"rack-{node}"


class TestedCluster(ABC):
    """Three nodes. Life: `start`, then `close`."""

    __test__ = False
    name = "cluster"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bootstrap = ""
        self._ends = ExitStack()

    @abstractmethod
    def start(self) -> None:
        """Start all nodes; return when they serve."""

    @abstractmethod
    def kill(self, node: int) -> None:
        """End a node with SIGKILL."""

    @abstractmethod
    def pid(self, node: int) -> int:
        """Return the process of a node."""

    @abstractmethod
    def restart(self, node: int) -> None:
        """Start a node again that was killed; return when it serves."""

    def close(self) -> None:
        """End everything."""
        self._ends.close()

    @property
    def last_words(self) -> str:
        """The end of what the nodes have said, for the report of a test that fails."""
        logs = [
            Path(folder, name)
            for folder, _, names in os.walk(self.folder)
            for name in names
            if name in ("dlogd.log", "output.log")
        ]
        return "\n".join(
            f"{path}:\n{path.read_text(errors='replace')[-_LAST_WORDS_MAX:]}"
            for path in sorted(logs)
        )


class DlogdCluster(TestedCluster):
    """`dlogctl sandbox --nodes 3`."""

    name = "dlogd"

    def start(self) -> None:
        self._sandbox = self._ends.enter_context(
            running_sandbox(self.folder / "sandbox", nodes=len(NODES))
        )
        self.bootstrap = self._sandbox.bootstrap

    def kill(self, node: int) -> None:
        os.kill(self.pid(node), signal.SIGKILL)

    def pid(self, node: int) -> int:
        return self._sandbox.pids[node]

    def restart(self, node: int) -> None:
        self._sandbox.restart(node)


class _Node(KafkaServer):
    """One of the nodes, small and quick to start: nobody measures it here."""

    jvm_options = (
        *("-Xmx384m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-Xshare:auto", "-Djava.awt.headless=true"),
    )

    def __init__(self, folder: Path, node: int, controllers: dict[int, int]) -> None:
        super().__init__(folder)
        own = f"{HOST}:{controllers[node]}"
        voters = ",".join(f"{n}@{HOST}:{port}" for n, port in controllers.items())
        self._overrides = {
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{own}",
            "auto.create.topics.enable": "false",
            # Readers in a node's rack may be sent to it.
            "broker.rack": rack_of(node),
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            # A node that is dead is soon called so.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }


class KafkaCluster(TestedCluster):
    """Three nodes of Apache Kafka, each broker and controller.

    Raises StartError where they cannot be had.
    """

    name = "kafka"

    def start(self) -> None:
        controllers = {node: free_port() for node in NODES}
        self._nodes = {n: _Node(self.folder / f"kafka-{n}", n, controllers) for n in NODES}
        nodes = list(self._nodes.values())
        for each in nodes:
            each.install()
            each.folder.mkdir(parents=True)
            each.prepare()
        # One alone never serves: most of the controllers must be up.
        for each in nodes:
            each.launch()
            self._ends.callback(each.kill)
        for each in nodes:
            each.wait(each.ready, 90)
        self.bootstrap = ",".join(each.bootstrap for each in nodes)

    def kill(self, node: int) -> None:
        self._nodes[node].kill()

    def pid(self, node: int) -> int:
        return self._nodes[node].pid

    def restart(self, node: int) -> None:
        self._nodes[node].launch()
        self._nodes[node].wait(self._nodes[node].ready, 90)


CLUSTERS: dict[str, type[TestedCluster]] = {
    kind.name: kind for kind in (DlogdCluster, KafkaCluster)
}
