"""Config of one partition log, as values."""

from dataclasses import dataclass

from dlogd.config.choices import DirectIo, FlushPolicy

KIB = 1 << 10
MIB = 1 << 20
DAY_MS = 86_400_000

FLUSH_BYTES_MAX = 8 * MIB
"""One write of a flush ends at the last known batch boundary within so many bytes; a single larger
batch goes in one piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one partition's log is kept; replaceable live by `PartitionLog.reconfigure`.

    A new flush policy, direct_io or index interval takes effect with the next segment.
    """

    segment_bytes: int = 1024 * MIB
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4 * KIB
    # The longest step; the first one is PREALLOCATE_BYTES_MIN, each next doubles the segment.
    preallocate_bytes: int = 64 * MIB
    flush_policy: FlushPolicy = FlushPolicy.ALWAYS
    flush_interval_ms: int = 1000
    direct_io: DirectIo = DirectIo.AUTO
    retention_ms: int = 7 * DAY_MS  # -1: for ever
    retention_bytes: int = -1  # -1: unlimited
    max_message_bytes: int = MIB + 12

    @property
    def durable(self) -> bool:
        """Whether every write is brought to stable storage before it counts."""
        return self.flush_policy is FlushPolicy.ALWAYS

    @property
    def direct_writes(self) -> bool:
        """Whether segments are written past the page cache; only durable writes gain by it."""
        return self.durable and self.direct_io is not DirectIo.OFF
