"""Setup of storage for a node: settings, construction, placement of logs.

Part of the composition: `dlogd.node.broker` calls it.
"""

import asyncio
from collections.abc import Callable, Iterable

from dlog.errors import ConfigError
from dlogd.config.choices import DirectIo
from dlogd.config.schema import Config
from dlogd.metadata.raft.durable_log import NAME as RAFT_LOG
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Entropy
from dlogd.runtime.tasks import Tasks
from dlogd.server.context import LogDir
from dlogd.storage.directory.log_directory import LogDirectory, StorageSettings
from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.buffer_pool import BufferPool
from dlogd.storage.io.files import Directory
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log_manager import LogManager
from dlogd.storage.segment.open_file_cache import OpenFileCache
from dlogd.telemetry.metrics import Telemetry

META = "meta"


def storage_settings(config: Config) -> StorageSettings:
    """Return the node-wide settings of storage."""
    return StorageSettings(
        reserve=config.disk.reserve_bytes,
        recovery_parallelism=config.recovery.parallelism,
        retention_check_interval_ms=config.retention.check_interval_ms,
        direct_required=config.direct_io is DirectIo.ON,
        scrub_interval_ms=config.scrub.interval_ms,
        scrub_rate=config.scrub.rate,
        disk_timeout_ms=config.disk.timeout_ms,
    )


def make_logs(
    config: Config,
    open_directory: Callable[[str], Directory],
    *,
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    entropy: Entropy,
    engine: Engine,
    tasks: Tasks,
    telemetry: Telemetry,
) -> LogManager:
    """Return the node's logs, not yet claimed."""
    pool = BufferPool(config.append.memory_bytes, call_soon=loop.call_soon, huge_pages=True)
    services = LogServices(
        loop=loop,
        clock=clock,
        engine=engine,
        memory=AppendMemory(pool),
        tasks=tasks,
        metrics=telemetry.storage,
        open_segments=OpenFileCache(),
    )
    return LogManager(
        [open_directory(path) for path in config.data.directories],
        services=services,
        entropy=entropy,
        settings=storage_settings(config),
    )


def log_dirs(homes: Iterable[LogDirectory]) -> list[LogDir]:
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


def metadata_directory(config: Config, open_directory: Callable[[str], Directory]) -> Directory:
    """Return the directory of the metadata. Blocking; raises OSError.

    Raises ConfigError when it has that of a node of a cluster, and this one is alone: no topic
    would claim the logs, all would be set aside.
    """
    path = config.metadata.directory
    if path is None:
        directory = metadata_home(open_directory(config.data.directories[0]))
    else:
        directory = open_directory(path)
    if config.controllers is None and directory.exists(RAFT_LOG):
        raise ConfigError(
            f"{directory.path} holds the metadata of a node of a cluster: set `controllers` as on"
            " the other nodes, or give the node new directories (data.directories,"
            " metadata.directory)"
        )
    return directory


def metadata_home(root: Directory) -> Directory:
    """Return the directory of the metadata; durable, before a vote in it is promised."""
    home = root.directory(META, create=True)
    root.sync()
    return home
