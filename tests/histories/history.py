"""What clients called and heard, and what was done to the nodes: the material of the checkers.

Values only. Times are nanoseconds of the one clock that all share: virtual in a simulation,
monotonic with real processes. A record is known by its number, which is unique in a run, grows with
each send of a client, and stands in its value.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from uuid import UUID


class LogKey(NamedTuple):
    """One partition in one life of its topic."""

    topic_id: UUID
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}.{str(self.topic_id)[:4]}"


class Outcome(Enum):
    """What a client knows of its call in the end."""

    OK = "ok"
    REFUSED = "refused"  # certainly nothing happened
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One batch that a producer wanted in a log; `completed_ns` is 0 until it is over."""

    client: str
    key: LogKey
    numbers: tuple[int, ...]
    acks: int
    invoked_ns: int
    # Idempotent: the producer id and its first sequence; None: a plain producer.
    session: tuple[int, int, int] | None = None
    attempts: int = 0
    completed_ns: int = 0
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1
    error: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One record that a consumer was given."""

    offset: int
    number: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Poll:
    """One answer to a fetch. `tailing`: it goes on where the client's last one ended.

    A high watermark of -1 was not told.
    """

    client: str
    key: LogKey
    invoked_ns: int
    completed_ns: int
    fetch_offset: int
    high_watermark: int
    log_start_offset: int
    records: tuple[Seen, ...]
    tailing: bool = False


@dataclass(frozen=True, slots=True)
class WatermarkTold:
    """The high watermark of some earlier answer, as a client knew it at this time.

    Clients that fetch ahead do not tell when they were told, so it is no part of a `Poll`. A new
    leader's answer to Fetch may tell less than its predecessor's, until its followers have
    confirmed its beginning, as Kafka's does; it is ListOffsets that waits for that (KIP-207).
    """

    client: str
    key: LogKey
    at_ns: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Trim:
    """A call of DeleteRecords; `low_watermark` is -1 when it is not known to have happened."""

    key: LogKey
    invoked_ns: int
    completed_ns: int
    offset: int
    low_watermark: int = -1


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """A leader epoch that metadata told."""

    key: LogKey
    invoked_ns: int
    completed_ns: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TimeSeen:
    """An answer to "which record is the first that is not older than `asked_ms`?"."""

    key: LogKey
    invoked_ns: int
    completed_ns: int
    asked_ms: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Follower:
    """A client that has read a log from an offset to its end, all faults being over."""

    client: str
    key: LogKey
    start_offset: int = 0


@dataclass(slots=True)
class LogFacts:
    """What may happen to a log by its topic's configuration and by the faults of the run."""

    flush_policy: str = "always"
    retention: bool = False
    # For so long records are kept for sure; -1: nothing is known, as when clocks are set.
    kept_ms: int = -1
    # A bit flipped in its files, so that anything but wrong records may be served.
    damaged: bool = False
    # Compressed records are checked before the append.
    checked: bool = False
    deleted: bool = False
    # With more than one, what only the leader has acknowledged may be lost with it.
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class FinalLog:
    """The whole of a log, read after everything had healed."""

    key: LogKey
    log_start_offset: int
    high_watermark: int
    records: tuple[Seen, ...]


@dataclass(slots=True)
class History:
    """Everything of one run."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    watermarks: list[WatermarkTold] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    epochs: list[EpochSeen] = field(default_factory=list)
    times: list[TimeSeen] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)
    power_cuts_ns: list[int] = field(default_factory=list)
    facts: dict[LogKey, LogFacts] = field(default_factory=dict)
    finals: dict[LogKey, FinalLog] = field(default_factory=dict)
    # Breaches that were seen at once: tracebacks, broken invariants, calls that never ended.
    violations: list[str] = field(default_factory=list)

    def facts_of(self, key: LogKey) -> LogFacts:
        """Return what may happen to a log."""
        return self.facts.setdefault(key, LogFacts())

    def cut_between(self, key: LogKey, start_ns: int, end_ns: int) -> bool:
        """Return whether a log with a weak flush policy lost power between two times."""
        if self.facts_of(key).flush_policy == "always":
            return False
        return any(start_ns <= cut_ns <= end_ns for cut_ns in self.power_cuts_ns)

    def log_keys(self) -> list[LogKey]:
        """Return all logs that anything happened to, sorted."""
        found: dict[LogKey, None] = dict.fromkeys([*self.facts, *self.finals])
        for items in (self.sends, self.polls, self.watermarks, self.trims, self.epochs):
            members: Iterable[Send | Poll | WatermarkTold | Trim | EpochSeen] = items
            for item in members:
                found.setdefault(item.key)
        return sorted(found)
