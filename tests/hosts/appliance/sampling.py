"""Samples of a cluster from outside, by a process that knows nothing of plays.

    python -m tests.hosts.appliance.sampling --nodes 1=10.77.0.11:9092,... --to FILE

Each node is asked by a thread of its own for the nodes that are up, the controller, and the
partitions that lack a replica in their ISR. A line of the file is one answer, with the times of
the monotonic clock before and after. It ends when its input ends.
"""

import argparse
import json
import socket
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.load import cluster

EVERY_S = 0.03
PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """What one node said."""

    node: int
    asked_ns: int
    answered_ns: int
    up: list[int]
    controller: int
    partitions: int
    incomplete: int
    """Partitions that lack a replica in their ISR."""
    misplaced: int
    """Partitions that another replica leads than the first."""


class Asker:
    """Asks one node. Its thread ends when `over` is set."""

    def __init__(self, node: int, address: str, over: threading.Event) -> None:
        self._node, self._over = node, over
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self.samples: list[Sample] = []

    def run(self) -> None:
        """Ask until it is over; a node that does not answer is asked again."""
        while not self._over.is_set():
            try:
                with socket.create_connection(self._address, PATIENCE_S) as connection:
                    connection.settimeout(PATIENCE_S)
                    while not self._over.wait(EVERY_S):
                        self.samples.append(self._ask(connection))
            except (OSError, struct.error, IndexError, cluster.LoadError):
                self._over.wait(EVERY_S)

    def _ask(self, connection: socket.socket) -> Sample:
        asked = time.monotonic_ns()
        found = cluster.picture(connection, None)
        controller = cluster.controller_id(connection)
        pairs = zip(found.replicas, found.isrs, strict=True)
        incomplete = sum(set(isr) != set(replicas) for replicas, isr in pairs)
        firsts = (replicas[0] for replicas in found.replicas)
        return Sample(
            node=self._node,
            asked_ns=asked,
            answered_ns=time.monotonic_ns(),
            up=list(found.nodes),
            controller=controller,
            partitions=len(found.isrs),
            incomplete=incomplete,
            misplaced=sum(a != b for a, b in zip(firsts, found.leaders, strict=True)),
        )


def load(path: Path) -> list[Sample]:
    """Return the samples of a file by the time of their answers."""
    return [Sample(**json.loads(line)) for line in path.read_text().splitlines()]


def main() -> int:
    """Ask until the input ends; write all samples."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.appliance.sampling")
    parser.add_argument("--nodes", required=True, help="NODE=HOST:PORT, with commas between")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    over = threading.Event()
    pairs = (each.partition("=") for each in options.nodes.split(","))
    askers = [Asker(int(node), address, over) for node, _, address in pairs]
    threads = [threading.Thread(target=each.run) for each in askers]
    for thread in threads:
        thread.start()
    print(json.dumps("ready"), flush=True)
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    samples = sorted((s for each in askers for s in each.samples), key=lambda s: s.answered_ns)
    options.to.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    print(json.dumps(len(samples)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
