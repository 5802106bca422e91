"""Writers that never give up: records on all partitions of a topic, and when each was acked.

Each partition has a thread that sends one record at a time, acks=all, and looks for the leader
again as soon as something is wrong, without any back-off: what is measured are the servers. While
an answer is missing it keeps asking the other nodes who leads.
"""

import itertools
import socket
import struct
import threading
import time
from collections.abc import Sequence

from bench.load import cluster, wire

TRY_S = 0.005
PATIENCE_S = 0.05
LOOK_S = 0.25
EVERY_S = 0.02
VALUE_BYTES = 100


class Writer:
    """One partition. Its thread ends when `over` is set."""

    def __init__(
        self, addresses: Sequence[str], topic: str, partition: int, over: threading.Event
    ) -> None:
        self._addresses = addresses
        self._topic, self._partition = topic, partition
        self._over = over
        self._leader = ""
        self._turn = partition
        self._error_at = wire.produce_error_at(topic)
        self._frame = wire.produce(topic, partition, wire.batch(1, VALUE_BYTES), acks=-1)
        self._connection: socket.socket | None = None
        # (sent, acknowledged) of every acknowledged record, by the monotonic clock.
        self.acked: list[tuple[int, int]] = []
        self.refusals: dict[str, int] = {}

    def run(self) -> None:
        """Write until it is over."""
        while not self._over.is_set():
            sent = time.monotonic_ns()
            try:
                self._write()
            except (OSError, wire.LoadError, struct.error, IndexError) as error:
                name = type(error).__name__
                self.refusals[name] = self.refusals.get(name, 0) + 1
                self._forget()
                time.sleep(TRY_S)
                continue
            now = time.monotonic_ns()
            self.acked.append((sent, now))
            time.sleep(max(0.0, EVERY_S - (now - sent) / 1e9))

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _look(self, avoid: str = "") -> str:
        """Ask the next node (not the one to avoid) who leads; nothing when it does not know."""
        others = [each for each in self._addresses if each != avoid]
        self._turn += 1
        host, _, port = others[self._turn % len(others)].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=LOOK_S) as connection:
            connection.settimeout(LOOK_S)
            found = cluster.picture(connection, [self._topic])
        return found.addresses.get(found.leaders[self._partition], "")

    def _write(self) -> None:
        if self._connection is None:
            # Whoever led may be paused: the others know as much.
            self._leader = self._look(avoid=self._leader)
            host, _, port = self._leader.rpartition(":")
            self._connection = socket.create_connection((host, int(port or 0)), timeout=LOOK_S)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.sendall(self._frame)
        answer = self._answer(self._connection)
        (code,) = struct.unpack_from(">h", answer, self._error_at)
        if code:
            raise wire.LoadError(f"refused with {code}")

    def _answer(self, connection: socket.socket) -> bytes:
        data = b""
        connection.settimeout(PATIENCE_S)
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            try:
                part = connection.recv(4096)
            except TimeoutError:
                self._check_leader()
                continue
            if not part:
                raise wire.LoadError("closed")
            data += part
        return data

    def _check_leader(self) -> None:
        """Raise when it is over, or when another node says that another one leads."""
        if self._over.is_set():
            raise wire.LoadError("over")
        try:
            leader = self._look(avoid=self._leader)
        except (OSError, wire.LoadError, struct.error, IndexError):
            return
        if leader and leader != self._leader:
            raise wire.LoadError("the leader has changed")


class Writers:
    """Writers on all partitions of a topic. Life: a `with` block, in which all of them write."""

    def __init__(self, addresses: Sequence[str], topic: str, partitions: int) -> None:
        self._over = threading.Event()
        self.each = [Writer(addresses, topic, number, self._over) for number in range(partitions)]
        self._threads = [threading.Thread(target=writer.run) for writer in self.each]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait(self, began_ns: int, timeout_s: float, count: int = 1) -> float:
        """Wait for records that were sent after `began_ns` and acknowledged, on all partitions.

        Return how long the worst partition took to the first of `count`.
        """
        end = time.monotonic() + timeout_s
        worst = 0
        for writer in self.each:
            while len(after := [done for sent, done in writer.acked if sent >= began_ns]) < count:
                if time.monotonic() > end:
                    raise wire.LoadError(f"no record was taken in {timeout_s} s")
                time.sleep(TRY_S)
            worst = max(worst, after[0] - began_ns)
        return worst / 1e9

    def longest_gap(self, began_ns: int) -> float:
        """Return the longest time between two acknowledgements of a partition since then."""
        worst = 0
        for writer in self.each:
            times = [done for _, done in writer.acked if done >= began_ns]
            worst = max(worst, *(b - a for a, b in itertools.pairwise(times)))
        return worst / 1e9
