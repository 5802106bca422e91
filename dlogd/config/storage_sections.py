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
        "One directory per disk. A new partition is placed in the directory with the most free "
        "space. If a disk fails, only its directory goes offline.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataConfig:
    """Where the cluster's metadata is kept."""

    directory: str | None = key(
        "metadata.directory",
        keys.PATH,
        None,
        "Journal and snapshots of the metadata. Without it: `meta` in the first data directory. "
        "Use the disk with the fastest flush.",
    )
    listener: Address | None = key(
        "metadata.listener",
        keys.ADDRESS,
        None,
        "Where other nodes reach the metadata of this node. Without it: the node's entry in "
        "`controllers`. Needed on nodes that are not in `controllers`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentConfig:
    """How a partition's log is cut into files."""

    bytes: int = key(
        "segment.bytes",
        keys.BYTES,
        "1GiB",
        "A segment is closed before it grows beyond this size. Retention deletes whole segments. "
        "Default of the topic config `segment.bytes`.",
        low=1 * KIB,
        high=INT32_MAX,
        reloadable=True,
    )
    ms: int = key(
        "segment.ms",
        keys.MILLISECONDS,
        "7d",
        "A segment is closed at this age, even if it is small, so that retention by time can "
        "delete it. Default of the topic config `segment.ms`.",
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
        "Bytes of log for each index entry, at most 4 MiB. Smaller values find offsets with less "
        "reading and need more disk space. Default of the topic config `index.interval.bytes`.",
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
        "Largest step in which an active segment allocates disk space ahead of its tail, so that "
        "a flush need not change the file's extents. Steps start at 1 MiB and double. At most "
        "`segment.bytes` is used; 0 disables preallocation. Default of the topic config "
        "`preallocate.bytes`.",
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
        "`aio`: Linux native AIO, with completions in the event loop. `threads`: a pool of "
        "threads. `auto`: aio if the kernel provides it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushConfig:
    """Durability of what is acknowledged."""

    policy: FlushPolicy = key(
        "flush.policy",
        keys.choice(FlushPolicy),
        "always",
        "`always`: acknowledged means on stable storage (group commit). `interval`: flushed every "
        "`flush.interval`. `never`: flushed when the system chooses. With `interval` and `never`, "
        "records survive a killed process, and unflushed records are lost at a power cut. Default "
        "of the topic config `flush.policy`.",
        reloadable=True,
    )
    interval_ms: int = key(
        "flush.interval",
        keys.DURATION,
        "1s",
        "Longest time that data stays unflushed, with `flush.policy: interval`. Default of the "
        "topic config `flush.interval.ms`.",
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
        "Memory for the tails of all active segments. Producers wait while all of it is "
        "unflushed. If there are several data directories, each has an equal share for unflushed "
        "data. Flushed tails stay in memory as a cache for consumers.",
        low=1 * MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """Memory of the read path."""

    memory_bytes: int = key(
        "read.memory.bytes",
        keys.BYTES,
        "32MiB",
        "Memory for reads of old data from disk. When all of it is used, reads wait for their "
        "turn.",
        low=1 * MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """How long records are kept."""

    time_ms: int = key(
        "retention.time",
        keys.DURATION_OR_UNLIMITED,
        "7d",
        "A segment is deleted when its newest record is older. Default of the topic config "
        "`retention.ms`.",
        low=0,
        reloadable=True,
    )
    bytes: int = key(
        "retention.bytes",
        keys.BYTES_OR_UNLIMITED,
        "-1",
        "While a partition is larger, its oldest segments are deleted. Default of the topic "
        "config `retention.bytes`.",
        low=0,
        reloadable=True,
    )
    check_interval_ms: int = key(
        "retention.check.interval",
        keys.DURATION,
        "30s",
        "How often the node checks segments for retention and age.",
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
        "How long the node keeps stray logs, counted from its start. Stray logs belong to topics "
        "that were deleted, or to replicas that moved to other nodes, while this node was down. "
        "Until then they can be restored from `stray/`.",
        low=1_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """Care for disks: their space, and whether they answer."""

    reserve_bytes: DiskReserve = key(
        "disk.reserve.bytes",
        keys.DISK_RESERVE,
        "auto",
        "Free space of a disk below which appends are refused. Reads and deletions continue. "
        "`auto`: 1GiB or 5 % of the disk, whichever is smaller.",
        reloadable=True,
    )
    timeout_ms: int = key(
        "disk.timeout",
        keys.DURATION,
        "30s",
        "If a disk leaves a read or a write unanswered for this time, its data directory goes "
        "offline like that of a failed disk. Time in which the host sleeps does not count.",
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
        "Partitions recovered at the same time in each data directory.",
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
        "How often the checksums of all closed segments are verified, from the start of one round "
        "to the start of the next; -1: never. The scrub finds damaged records while other "
        "replicas are good.",
        low=1_000,
        reloadable=True,
    )
    rate: int = key(
        "scrub.rate",
        keys.BYTES,
        "10MiB",
        "Bytes per second that the scrub reads from each data directory, at most: 10MiB are 6 TiB "
        "in a week. The scrub waits for all other reads and writes.",
        low=4 * KIB,
        high=INT32_MAX,
        reloadable=True,
    )
