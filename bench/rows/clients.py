"""Rows about client libraries: the same work for each, on the same dlogd, in turns."""

from collections.abc import Mapping, Sequence

from bench.arena import CLIENTS, Arena
from bench.load.clients.task import checksum_of
from bench.peers.server import Server
from bench.rows.row import Numbers, Row, Target

PARTITIONS = 4
WARM_SHARE = 5
SLOW = {"kafka-python": 4, "aiokafka": 4, "confluent-kafka": 1}
"""Who is given so much less to do than the others: a figure per second the same."""
SLOW_READERS = {**SLOW, "confluent-kafka": 2}

OURS = ("dlog-blocking", "dlog-asyncio")
SLOW_PEERS = ("kafka-python", "aiokafka")


class ClientRow(Row):
    """One kind of work, by every client that can do it."""

    slow: Mapping[str, int] = SLOW

    def __init__(
        self,
        name: str,
        title: str,
        do: str,
        *,
        value_bytes: int,
        count: int,
        quick_count: int,
        contenders: Sequence[str],
        targets: Sequence[Target],
    ) -> None:
        self.name, self.title = name, title
        self.contenders, self.targets = contenders, targets
        self._do, self._value_bytes = do, value_bytes
        self._count, self._quick_count = count, quick_count

    def records(self, arena: Arena, contender: str) -> int:
        """Return how many records this client has to do with."""
        return arena.pick(self._count, self._quick_count) // self.slow.get(contender, 1)

    def server(self, arena: Arena) -> Server:
        """Return the one dlogd, started by whoever comes first."""
        if "dlog" not in arena.servers:
            arena.add("dlog").start()
        return arena.servers["dlog"]

    def work(self, arena: Arena, contender: str, topic: str, count: int, *options: str) -> Numbers:
        """Let a client do its work once, and measure."""
        server = self.server(arena)
        load = ("--records", count, "--value-bytes", self._value_bytes, "--do", self._do, *options)
        client = CLIENTS[contender]
        settings = [part for setting in client.settings for part in ("--setting", setting)]
        with arena.measured(server) as costs:
            where = ("--topic", topic, "--partitions", PARTITIONS)
            result = arena.load(f"clients.{client.program}", server, *where, *load, *settings)
        result["server_cpu_s"] = costs[0].server_cpu_s
        result["machine_cpu_s"] = costs[0].machine_cpu_s
        return result


class ClientProduceRow(ClientRow):
    """Into a fresh topic each time; its end offsets say whether everything arrived."""

    def _produce(self, arena: Arena, contender: str, count: int) -> Numbers:
        server = self.server(arena)
        with arena.topic(server, PARTITIONS) as topic:
            result = self.work(arena, contender, topic, count)
            there = arena.record_count(server, topic, PARTITIONS)
        if there != count:
            raise RuntimeError(f"{contender}: {there} of {count} records are there")
        return result

    def open(self, arena: Arena, contender: str) -> None:
        """Send a part of it for warmth."""
        self._produce(arena, contender, self.records(arena, contender) // WARM_SHARE)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Produce once."""
        return self._produce(arena, contender, self.records(arena, contender))


class ClientConsumeRow(ClientRow):
    """All of a topic that is written once; every client is first checked for what it reads."""

    slow = SLOW_READERS

    def open(self, arena: Arena, contender: str) -> None:
        """Fill a topic of this size if nobody has; compare what the client reads, which warms."""
        server, count = self.server(arena), self.records(arena, contender)
        if count not in arena.topics:
            topic = arena.create_topic(server, PARTITIONS)
            where = ("--topic", topic, "--partitions", PARTITIONS, "--do", "produce-many")
            load = ("--records", count, "--value-bytes", self._value_bytes)
            arena.load("clients.confluent", server, *where, *load)
            arena.topics[count] = topic
        found = self.work(arena, contender, arena.topics[count], count, "--check")["checksum"]
        if found != checksum_of(count, self._value_bytes):
            raise RuntimeError(f"{contender} has read something else than was written")

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Consume once."""
        count = self.records(arena, contender)
        result = self.work(arena, contender, arena.topics[count], count)
        del result["checksum"]
        return result


def _at_least(bounds: Mapping[str, float]) -> tuple[Target, ...]:
    return tuple(
        Target(metric="records_per_s", ours=name, theirs=theirs, at_least=bound)
        for name in OURS
        for theirs, bound in bounds.items()
    )


def rows() -> list[Row]:
    """Return the rows of this kind, for records of 100 bytes and of 1 KiB."""
    return [
        row
        for make in (_produce_row, _produce_many_row, _consume_row, _consume_many_row)
        for row in (make("100", 100, 4), make("1k", 1024, 1))
    ]


def _title(what: str, value_bytes: int) -> str:
    return f"{what}, {'1-KiB' if value_bytes == 1024 else f'{value_bytes}-byte'} records"


def _produce_row(suffix: str, value_bytes: int, factor: int) -> Row:
    return ClientProduceRow(
        f"client-produce-{suffix}",
        _title("clients: produce, one record per call", value_bytes),
        "produce",
        value_bytes=value_bytes,
        count=500_000 * factor,
        quick_count=10_000 * factor,
        contenders=(*OURS, "confluent-kafka", *SLOW_PEERS),
        targets=_at_least({"confluent-kafka": 0.5, "kafka-python": 3, "aiokafka": 3}),
    )


def _produce_many_row(suffix: str, value_bytes: int, factor: int) -> Row:
    return ClientProduceRow(
        f"client-produce-many-{suffix}",
        _title("clients: produce, 10,000 per call (`send_many`, `produce_batch`)", value_bytes),
        "produce-many",
        value_bytes=value_bytes,
        count=1_000_000 * factor,
        quick_count=20_000 * factor,
        contenders=(*OURS, "confluent-kafka"),
        targets=_at_least({"confluent-kafka": 1}),
    )


def _consume_row(suffix: str, value_bytes: int, factor: int) -> Row:
    return ClientConsumeRow(
        f"client-consume-{suffix}",
        _title("clients: consume, one record at a time", value_bytes),
        "consume",
        value_bytes=value_bytes,
        count=250_000 * factor,
        quick_count=10_000 * factor,
        contenders=(*OURS, "confluent-tuned", *SLOW_PEERS),
        targets=_at_least({"kafka-python": 3, "aiokafka": 3}),
    )


def _consume_many_row(suffix: str, value_bytes: int, factor: int) -> Row:
    return ClientConsumeRow(
        f"client-consume-many-{suffix}",
        _title("clients: consume many per call (`poll_arrow`, `consume(10000)`)", value_bytes),
        "consume-many",
        value_bytes=value_bytes,
        count=1_000_000 * factor,
        quick_count=20_000 * factor,
        contenders=(*OURS, "confluent-kafka", "confluent-tuned"),
        targets=_at_least({"confluent-kafka": 3, "confluent-tuned": 3}),
    )
