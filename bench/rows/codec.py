"""Rows without a server: decoding to Arrow on one core, and how long programs take to begin."""

from bench.arena import Arena
from bench.rows.row import Numbers, Row, Target

OURS = "dlog"


class DecodeRow(Row):
    """Batches as a fetch brings them to a `pyarrow.RecordBatch`, checksums verified."""

    contenders = (OURS,)

    def __init__(self, name: str, title: str, value_bytes: int, least_per_s: float | None) -> None:
        self.name, self.title = name, title
        self._value_bytes = value_bytes
        if least_per_s is not None:
            metric = "records_per_s"
            self.targets = (Target(metric=metric, ours=OURS, theirs=None, at_least=least_per_s),)

    def open(self, arena: Arena, contender: str) -> None:
        """Nothing has to run."""

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Decode for a while."""
        seconds = arena.pick(3, 1)
        return arena.program("decode", "--value-bytes", self._value_bytes, "--seconds", seconds)


class ImportRow(Row):
    """A fresh interpreter each time: producers, consumers and admin of the library; `--help`."""

    name = "client-import"
    title = "clients: import of the library in a fresh interpreter; `dlogctl --help`, whole"
    contenders = (OURS, "confluent-kafka", "kafka-python", "aiokafka")
    targets = (
        Target(metric="import_ms", ours=OURS, theirs=None, at_most=150),
        Target(metric="help_ms", ours=OURS, theirs=None, at_most=200),
    )

    def open(self, arena: Arena, contender: str) -> None:
        """Let the files be in the page cache, and compiled."""
        self.run(arena, contender)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Import once, and ask for help once."""
        return arena.program("begin", "--library", contender)


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [
        DecodeRow("client-decode", "decode 100-byte records to Arrow, one core", 100, 3e6),
        DecodeRow("client-decode-1k", "the same, 1-KiB records", 1024, None),
        ImportRow(),
    ]
