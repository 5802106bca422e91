"""What every client under test can be asked to do, in one vocabulary.

Adapters translate and nothing else: a retry or a default of a library is part of what is tested.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

Header = tuple[str, bytes | None]

# How long a waiting consumer lets its fetch be parked; a record must reach it much sooner.
TAIL_WAIT_MS = 10_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class RefusedError(Exception):
    """The server answered with an error; `code` is Kafka's number for it."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{code} {message}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Rec:
    """One record, as written (offset unknown) or as read.

    Partition -1: the client chooses (not every driver can be asked that).
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int = -1

    def bare(self) -> "Rec":
        """The record without what the server decides."""
        return replace(self, timestamp_ms=None, offset=-1)


class Driver:
    """A client. `lacks` names what its library cannot do; the tests leave those pairs out."""

    name = "driver"
    lacks: frozenset[str] = frozenset()

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; returns when the server says that it exists."""
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        raise NotImplementedError

    def create_partitions(self, topic: str, partitions: int) -> None:
        """Raise the partition count to `partitions`."""
        raise NotImplementedError

    def describe_topic(self, topic: str) -> list[int]:
        """Return the leader of each partition; raise RefusedError(3) for an unknown topic."""
        raise NotImplementedError

    def list_topics(self) -> list[str]:
        """Return the names of all topics."""
        raise NotImplementedError

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        """Return the topic's configuration, defaults included."""
        raise NotImplementedError

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Set the keys given; None deletes an override."""
        raise NotImplementedError

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Delete everything before `offset` (-1: all); return the new log start offset."""
        raise NotImplementedError

    def describe_cluster(self) -> tuple[str, int, list[int]]:
        """Return cluster id, controller, node ids."""
        raise NotImplementedError

    def describe_log_dirs(self) -> dict[str, int]:
        """Return the size in bytes of each `topic-partition` of the first node."""
        raise NotImplementedError

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        """Return the offset `at` earliest, latest, max_timestamp or a timestamp (-1: none)."""
        raise NotImplementedError

    def produce(
        self,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Write `records` in order and wait for the answers; return their offsets."""
        raise NotImplementedError

    def consume(
        self, topic: str, partition: int, start: str | int, count: int, timeout_s: float = 20
    ) -> list[Rec]:
        """Read `count` records (or what is there in time) from an offset or `earliest`."""
        raise NotImplementedError

    def tail(
        self, topic: str, partition: int
    ) -> AbstractContextManager[Callable[[int, float], list[Rec]]]:
        """Wait at the end of a partition; the function given reads (count, timeout_s) records."""
        raise NotImplementedError

    def close(self) -> None:
        """Release connections and processes."""
