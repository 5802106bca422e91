"""What goes between storage and the rest of a node: its settings, and where logs lie.

Part of the composition: `dlogd.broker` calls it.
"""

from collections.abc import Iterable

from dlogd.config.choices import DirectIo
from dlogd.config.schema import Config
from dlogd.server.context import LogDir
from dlogd.storage.homes import Home, StorageSettings


def storage_settings(config: Config) -> StorageSettings:
    """Return the node-wide settings of storage."""
    return StorageSettings(
        reserve=config.disk.reserve_bytes,
        recovery_parallelism=config.recovery.parallelism,
        retention_check_interval_ms=config.retention.check_interval_ms,
        direct_required=config.direct_io is DirectIo.ON,
    )


def log_dirs(homes: Iterable[Home]) -> list[LogDir]:
    """Return the data directories and what they hold."""
    found = []
    for home in homes:
        online = home.failure is None
        found.append(
            LogDir(
                path=home.path,
                online=online,
                total_bytes=home.space.total_bytes if online else -1,
                free_bytes=home.space.free_bytes if online else -1,
                partitions=[(each.topic_partition, each.size_bytes) for each in home.logs.values()],
            )
        )
    return found
