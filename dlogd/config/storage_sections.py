"""Configuration of storage: directories, segments, flushing, memory, retention.

Pure declarations; `dlogd.config.schema` puts them together.
"""

from dataclasses import dataclass

from dlogd.config import keys
from dlogd.config.choices import FlushPolicy, IoEngineKind
from dlogd.config.keys import key
from dlogd.config.units import Address, DiskReserve

INT32_MAX = (1 << 31) - 1
KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where records are kept."""

    directories: tuple[str, ...] = key(
        "data.directories",
        keys.PATHS,
        "/var/lib/dlog",
        "One directory per disk. A new partition goes to the one with the most free space; "
        "a disk that fails goes offline alone.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataConfig:
    """Where the cluster's metadata is kept."""

    directory: str | None = key(
        "metadata.directory",
        keys.PATH,
        None,
        "Journal and snapshots of the metadata; `meta` in the first data directory when not "
        "given. Put it on the disk with the fastest flush.",
    )
    listener: Address | None = key(
        "metadata.listener",
        keys.ADDRESS,
        None,
        "Where other nodes reach the metadata of this one; its entry in `controllers` when not "
        "given. Needed on nodes of a cluster that are no controllers.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentConfig:
    """How a partition's log is cut into files."""

    bytes: int = key(
        "segment.bytes",
        keys.BYTES,
        "1GiB",
        "A segment is closed before it grows beyond this; retention drops whole segments. "
        "Default of the topic config `segment.bytes`.",
        low=1 * KIB,
        high=INT32_MAX,
        reloadable=True,
    )
    ms: int = key(
        "segment.ms",
        keys.MILLISECONDS,
        "7d",
        "A segment is closed at this age even when small, so that retention by time can drop it. "
        "Default of the topic config `segment.ms`.",
        low=1,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """How densely a segment is indexed."""

    interval_bytes: int = key(
        "index.interval.bytes",
        keys.BYTES,
        "4KiB",
        "One index entry per so many bytes of log, 4 MiB at most: denser finds offsets with less "
        "reading, takes more space on the disk. "
        "Default of the topic config `index.interval.bytes`.",
        low=256,
        high=INT32_MAX,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreallocateConfig:
    """How far ahead of its tail a segment takes disk space."""

    bytes: int = key(
        "preallocate.bytes",
        keys.BYTES,
        "64MiB",
        "Longest step in which an active segment takes space ahead of its tail, so that a flush "
        "need not change the file's extents; steps begin at 1 MiB and double. At most "
        "`segment.bytes` is used; 0 switches it off. "
        "Default of the topic config `preallocate.bytes`.",
        low=0,
        high=INT32_MAX,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IoConfig:
    """How disks are driven."""

    engine: IoEngineKind = key(
        "io.engine",
        keys.choice(IoEngineKind),
        "auto",
        "`aio`: Linux native AIO, completions in the event loop. `threads`: a pool of threads. "
        "`auto` takes aio where the kernel gives it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushConfig:
    """Durability of what is acknowledged."""

    policy: FlushPolicy = key(
        "flush.policy",
        keys.choice(FlushPolicy),
        "always",
        "`always`: acknowledged means on stable storage (group commit). `interval`: flushed every "
        "`flush.interval`; `never`: when the system likes; both survive a killed process, and "
        "lose what was not flushed at a power cut. Default of the topic config `flush.policy`.",
        reloadable=True,
    )
    interval_ms: int = key(
        "flush.interval",
        keys.DURATION,
        "1s",
        "Longest time that data stays unflushed under `flush.policy: interval`. "
        "Default of the topic config `flush.interval.ms`.",
        low=1,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendConfig:
    """Memory of the write path."""

    memory_bytes: int = key(
        "append.memory.bytes",
        keys.BYTES,
        "32MiB",
        "Memory for the tails of all active segments; producers wait when all of it is unflushed. "
        "Each of several data directories has an equal share of what is not flushed. "
        "Flushed tails stay in it as a cache for consumers.",
        low=1 * MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """Memory of the read path."""

    memory_bytes: int = key(
        "read.memory.bytes",
        keys.BYTES,
        "32MiB",
        "Memory for reads of old data from disk; reads wait their turn when it is used up.",
        low=1 * MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """How long records are kept."""

    time_ms: int = key(
        "retention.time",
        keys.DURATION_OR_UNLIMITED,
        "7d",
        "Segments whose newest record is older are dropped. "
        "Default of the topic config `retention.ms`.",
        low=0,
        reloadable=True,
    )
    bytes: int = key(
        "retention.bytes",
        keys.BYTES_OR_UNLIMITED,
        "-1",
        "Old segments are dropped while a partition is larger. "
        "Default of the topic config `retention.bytes`.",
        low=0,
        reloadable=True,
    )
    check_interval_ms: int = key(
        "retention.check.interval",
        keys.DURATION,
        "30s",
        "How often segments are checked against retention and age.",
        low=10,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayConfig:
    """Logs that no topic claims."""

    retention_ms: int = key(
        "stray.retention",
        keys.DURATION_OR_UNLIMITED,
        "1d",
        "How long a start keeps what it found of topics that were deleted, or of replicas that "
        "went to other nodes, while it was down; counted from the start. Until then it can be "
        "brought back from `stray/`.",
        low=1_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """Care for disks: their space, and whether they answer."""

    reserve_bytes: DiskReserve = key(
        "disk.reserve.bytes",
        keys.DISK_RESERVE,
        "auto",
        "Appends are refused while a disk has less than this free; reads and deletions go on. "
        "`auto`: 1GiB or 5 % of the disk, whichever is smaller.",
        reloadable=True,
    )
    timeout_ms: int = key(
        "disk.timeout",
        keys.DURATION,
        "30s",
        "A data directory whose disk leaves a read or a write unanswered for so long goes offline "
        "as one that fails does. Time in which the host sleeps does not count.",
        low=5_000,
        high=600_000,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """Start after a crash."""

    parallelism: int = key(
        "recovery.parallelism",
        keys.INTEGER,
        "4",
        "Partitions recovered at once in each data directory.",
        low=1,
        high=64,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubConfig:
    """Care for data that nobody reads."""

    interval_ms: int = key(
        "scrub.interval",
        keys.DURATION_OR_UNLIMITED,
        "7d",
        "How often the checksums of all closed segments are verified, from the begin of one round "
        "to that of the next; -1: never. What has rotted is found while other replicas are good.",
        low=1_000,
        reloadable=True,
    )
    rate: int = key(
        "scrub.rate",
        keys.BYTES,
        "10MiB",
        "Bytes per second that the scrub reads from each data directory, at most: 10MiB are 6 TiB "
        "in a week. It waits behind all other reads and writes.",
        low=4 * KIB,
        high=INT32_MAX,
        reloadable=True,
    )
