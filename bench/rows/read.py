"""Rows that read what was written before: catching up, alone and beside a producer."""

from bench.arena import Arena
from bench.peers.server import Server
from bench.rows.row import Numbers, Row, Target

FILL_BYTES, FILL_QUICK_BYTES = 5_000_000_000, 300_000_000
RECORDS, VALUE_BYTES, PARTITIONS = 64, 1024, 4
GB = 1e9


def fill(arena: Arena, server: Server, topic: str) -> None:
    """Write 5 GB over the partitions of `topic`."""
    size = arena.pick(FILL_BYTES, FILL_QUICK_BYTES)
    shape = ("--records", RECORDS, "--value-bytes", VALUE_BYTES)
    many = ("--connections", 4, "--in-flight", 5, "--requests", size // (RECORDS * VALUE_BYTES))
    arena.load("requests", server, "--topic", topic, "--partitions", PARTITIONS, *shape, *many)


class FilledRow(Row):
    """A row over a topic of 5 GB that is written once."""

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}

    def open(self, arena: Arena, contender: str) -> None:
        """Start the server, fill a topic, and run once for warmth."""
        super().open(arena, contender)
        server = arena.servers[contender]
        topic = arena.create_topic(server, PARTITIONS)
        fill(arena, server, topic)
        self._topics[contender] = topic
        self.run(arena, contender)

    def _where(self, contender: str) -> tuple[object, ...]:
        return ("--topic", self._topics[contender], "--partitions", PARTITIONS)


class CatchUpRow(FilledRow):
    """Read everything from the beginning, as fast as it goes."""

    name = "catch-up"
    title = "catch-up read of 5 GB over 4 connections"
    targets = (
        Target(metric="mb_per_s", at_least=1.0),
        Target(metric="cpu_s_per_gb", at_most=0.7),
    )

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Read once."""
        server = arena.servers[contender]
        with arena.measured(server) as costs:
            result = arena.load("catchup", server, *self._where(contender))
        result["cpu_s_per_gb"] = costs[0].server_cpu_s / (result["bytes"] / GB)
        result["machine_cpu_s"] = costs[0].machine_cpu_s
        result["rss_mb"] = server.usage().rss_bytes / 1e6
        return result


class ProduceBesideReadersRow(FilledRow):
    """A steady producer while readers go through old data at full speed."""

    name = "produce-beside-catch-up"
    title = "one-record produce at 200/s (8 connections) while a catch-up read of old data runs"
    targets = (Target(metric="p99_us", at_most=0.5),)
    RATE = 200
    SECONDS, QUICK_SECONDS = 15, 4

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Start the readers, then the producer."""
        server = arena.servers[contender]
        seconds = arena.pick(self.SECONDS, self.QUICK_SECONDS)
        reading = (*self._where(contender), "--seconds", seconds + 4)
        steady = ("--rate", self.RATE, "--requests", self.RATE * seconds)
        with (
            arena.topic(server, PARTITIONS) as topic,
            arena.background("catchup", server, *reading, ready=False),
        ):
            where = ("--topic", topic, "--partitions", PARTITIONS, "--value-bytes", VALUE_BYTES)
            return arena.load("paced", server, *where, *steady)


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [CatchUpRow(), ProduceBesideReadersRow()]
