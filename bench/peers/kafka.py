"""Apache Kafka as one KRaft node, with the options that its own start script gives it.

`python -m bench.peers.kafka --dir DIR [--port P] [key=value ...]` runs one in the foreground and
prints `ready bootstrap=HOST:PORT pids=1:PID`; the client suite can be pointed at it.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.peers.server import CACHE, HOST, Server, StartError, free_port

VERSION = "4.3.1"
HERE = Path(__file__).resolve().parent
CLUSTER_ID = "ZGxvZy1iZW5jaC1rYWZrYQ"
# kafka-server-start.sh of 4.3: heap, then kafka-run-class.sh: collector, JMX, GC log.
JVM_OPTIONS = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-Djava.awt.headless=true", "-Dcom.sun.management.jmxremote"),
    *("-Dcom.sun.management.jmxremote.authenticate=false",),
    *("-Dcom.sun.management.jmxremote.ssl=false",),
)
# config/server.properties of 4.3, the lines that are not comments, addresses and folders apart.
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
}


class KafkaServer(Server):
    """One Kafka node. `overrides` are broker properties."""

    name = "kafka"
    jvm_options: Sequence[str] = JVM_OPTIONS

    def __init__(
        self, folder: Path, port: int | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        super().__init__(folder, port)
        self._controller_port = free_port()
        self._overrides = overrides or {}
        self._jars = CACHE / "kafka" / VERSION

    def install(self) -> None:
        """Copy the jars from Maven Central into the cache, once."""
        if (self._jars / ".complete").exists():
            return
        for program, package in (("java", "openjdk-17-jdk-headless"), ("mvn", "maven")):
            if shutil.which(program) is None:
                raise StartError(f"{program} is missing; as root: apt-get install {package}")
        # A copy of the pom: Maven may write beside it.
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(HERE / "pom.xml", folder)
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={self._jars}"]
            command = ["mvn", "-q", "-B", f"-Dkafka.version={VERSION}", *goal]
            subprocess.run(command, cwd=folder, check=True, timeout=600)
        (self._jars / ".complete").touch()

    def _java(self, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}"
        logs = f"-Dkafka.logs.dir={self.folder}"
        return ["java", *arguments[:-2], logs, log4j, "-cp", f"{self._jars}/*", *arguments[-2:]]

    def prepare(self) -> None:
        """Write server.properties and format the storage, once per folder."""
        properties = self.folder / "server.properties"
        if properties.exists():
            return
        quorum = f"{HOST}:{self._controller_port}"
        lines = {
            **PROPERTIES,
            "controller.quorum.voters": f"1@{quorum}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{quorum}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.folder / "data"),
            **self._overrides,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        tool = ["format", "-t", CLUSTER_ID, "-c", str(properties)]
        command = [*self._java("kafka.tools.StorageTool", "format")[:-1], *tool]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise StartError(f"kafka storage format failed: {done.stdout}{done.stderr}")

    def command(self) -> Sequence[str]:
        """Return what kafka-server-start.sh would run."""
        gc_log = f"-Xlog:gc*:file={self.folder}/gc.log:time,tags:filecount=10,filesize=100M"
        properties = str(self.folder / "server.properties")
        return self._java(*self.jvm_options, gc_log, "kafka.Kafka", properties)


def main() -> int:
    """Run one node in the foreground until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.kafka")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("property", nargs="*", help="key=value")
    options = parser.parse_args()
    overrides = dict(text.split("=", 1) for text in options.property)
    server = KafkaServer(options.dir.resolve(), options.port, overrides)
    server.start()
    print(f"ready bootstrap={server.bootstrap} pids=1:{server.pid}", flush=True)
    # The child runs already, so that it does not inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
