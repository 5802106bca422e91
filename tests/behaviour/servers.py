"""The servers that the library is tried against, each reached in two ways.

Directly at `bootstrap`; and by way of a harmful proxy, which listens on `proxy_port` and forwards
to `behind`: who comes that way is told of no other address.
"""

import os
import socket
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

from bench.peers.kafka import KafkaServer
from bench.peers.server import HOST, free_port
from dlog.transport import Address
from scripts.sandbox import running_sandbox
from tests.daemon.process import daemon

# Retention is looked after often, so that a test sees it at work.
RETENTION_CHECK_MS = 300
_LAST_WORDS_MAX = 2_000


class TestedServer(ABC):
    """A server under test. Life: a `with` block; `kill` and `restart` within."""

    __test__ = False
    name = "server"
    has_transactions = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bootstrap = ""
        self._ends = ExitStack()
        # The port stays bound, so that proxies may come and go and nobody else takes it.
        keeper = self._ends.enter_context(socket.socket())
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind((HOST, 0))
        self.proxy_port: int = keeper.getsockname()[1]

    @property
    @abstractmethod
    def behind(self) -> Address:
        """Where a proxy forwards to, now."""

    @abstractmethod
    def start(self) -> None:
        """Start whatever has to run."""

    @abstractmethod
    def kill(self) -> None:
        """End the node behind the proxy with SIGKILL."""

    @abstractmethod
    def restart(self) -> None:
        """Start it again after `kill`; returns when it serves."""

    @property
    def last_words(self) -> str:
        """The end of what the servers have said, for the report of a test that fails."""
        # Not rglob, which raises when a server deletes a folder meanwhile.
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

    def close(self) -> None:
        """End everything."""
        self._ends.close()


class Dlogd(TestedServer):
    """`dlogctl sandbox` for those who come directly, and a node of its own behind the proxy."""

    name = "dlogd"

    def start(self) -> None:
        overrides = {"retention.check.interval": f"{RETENTION_CHECK_MS}ms"}
        sandbox = self._ends.enter_context(
            running_sandbox(self.folder / "sandbox", overrides=overrides)
        )
        self.bootstrap = sandbox.bootstrap
        advertised = f"advertised.address: {HOST}:{self.proxy_port}\n"
        self._node = self._ends.enter_context(daemon(self.folder / "behind", advertised))
        self._node.start()

    @property
    def behind(self) -> Address:
        return Address.parse(self._node.status()["listeners"][0])

    def kill(self) -> None:
        process = self._node.process
        assert process is not None
        process.kill()
        process.wait()

    def restart(self) -> None:
        self._node.start()


class _KafkaNode(KafkaServer):
    """One node with two listeners, small and quick to start: nobody measures it here."""

    jvm_options = (
        *("-Xmx512m", "-Xms256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-Xshare:auto", "-Djava.awt.headless=true"),
    )

    def __init__(self, folder: Path, proxy_port: int) -> None:
        super().__init__(folder)
        self.behind_port = free_port()
        quorum = f"{HOST}:{self._controller_port}"
        behind = f"BEHIND://{HOST}:{self.behind_port}"
        names = ("PLAINTEXT", "BEHIND", "CONTROLLER")
        self._overrides = {
            "listeners": f"PLAINTEXT://{self.bootstrap},{behind},CONTROLLER://{quorum}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},BEHIND://{HOST}:{proxy_port}",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "log.retention.check.interval.ms": str(RETENTION_CHECK_MS),
            "log.initial.task.delay.ms": str(RETENTION_CHECK_MS),
            # One that was killed may come back when its session has ended.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "300",
            "log.cleaner.backoff.ms": str(RETENTION_CHECK_MS),
            "transaction.state.log.num.partitions": "1",
            "auto.create.topics.enable": "false",
        }


class Kafka(TestedServer):
    """Apache Kafka; one node for both ways. Raises StartError where it cannot be had."""

    name = "kafka"
    has_transactions = True

    def start(self) -> None:
        self._node = _KafkaNode(self.folder / "kafka", self.proxy_port)
        self._ends.callback(self._node.kill)
        self._node.start()
        self.bootstrap = self._node.bootstrap

    @property
    def behind(self) -> Address:
        return Address(HOST, self._node.behind_port)

    def kill(self) -> None:
        self._node.kill()

    def restart(self) -> None:
        self._node.start()


SERVERS: dict[str, type[TestedServer]] = {kind.name: kind for kind in (Dlogd, Kafka)}
