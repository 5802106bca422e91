"""Constants of the production code that a run makes small, so that rare paths are common.

Bounds of batches of work, sizes of buffers and pauses: none of them may matter for what is right.
"""

import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dlogd.metadata.local_store import MetadataStore
from dlogd.storage.segment.open_file_cache import OpenFileCache

Value = int | float

# Name, module that must have it, and the values to choose from; the last is as it is.
_CHOICES: dict[str, tuple[str, tuple[Value, ...]]] = {
    "PAGE_COUNT": ("dlogd.storage.segment.sparse_index", (2, 5, 340)),
    "RECENT_COUNT_MAX": ("dlogd.storage.segment.sparse_index", (4, 4096)),
    "FLUSH_BYTES_MAX": ("dlogd.storage.log.log_config", (16_384, 8 << 20)),
    "SYNCHRONOUS_BYTES_MAX": ("dlogd.storage.log.flusher", (0, 64 << 10)),
    "PREALLOCATE_BYTES_MIN": ("dlogd.storage.log.log_jobs", (4096, 32_768, 1 << 20)),
    "PREPARE_DISTANCE_BYTES": ("dlogd.storage.log.log_jobs", (0, 4096, 16 << 10)),
    "CURSORS_MAX": ("dlogd.storage.log.log_reader", (1, 3, 32)),
    "_PEEK_BYTES": ("dlogd.storage.log.batch_lookup", (100, 8192)),
    "WINDOW_BYTES": ("dlogd.storage.segment.batch_scan", (512, 1 << 20)),
    "_SEARCH_BYTES": ("dlogd.storage.segment.batch_scan", (256, 64 << 10)),
    "PIECE_COUNT": ("dlogd.storage.log.header_replay", (2, 1000)),
    "RETRY_S": ("dlogd.replication.replica_manager", (0.2, 5.0)),
    "SNAPSHOT_BYTES": ("dlogd.replication.partition.snapshot_schedule", (1000, 16 << 20)),
    "SNAPSHOT_PAUSE_S": ("dlogd.replication.partition.snapshot_schedule", (0.1, 5.0)),
    "BLOCK_COUNT": ("dlogd.server.handlers.producer_ids", (1, 3, 1000)),
    "GATHER_COUNT_MAX": ("dlogd.net.reply_queue", (1, 4, 64)),
    "WAITING_BYTES_MAX": ("dlogd.net.reply_queue", (5000, 1 << 20)),
    "SLICE_BYTES": ("dlogd.net.send_turns", (500, 256 << 10)),
    "TRANSPORT_CHUNK_BYTES": ("dlogd.net.socket_writer", (700, 64 << 10)),
    "SMALL_FRAME_BYTES": ("dlogd.net.frame_reader", (300, 64 << 10)),
    "LENT_BYTES": ("dlogd.net.frame_memory", (300_000, 2 << 20)),
    "HELD_READ_COUNT_MAX": ("dlogd.server.listener", (1, 8)),
    "OUTCOMES_REMEMBERED": ("dlogd.metadata.state.limits", (5, 1000)),
}
_JOURNAL_BYTES = (1000, 20_000, 4 << 20)
_OPEN_SEGMENTS = (1, 3, 512)


def draw_constants(rng: random.Random) -> dict[str, Value]:
    """Return a random choice; about half of all stay as they are."""
    drawn: dict[str, Value] = {}
    for name, (_, values) in _CHOICES.items():
        value = rng.choice(values)
        if rng.random() < 0.6:
            drawn[name] = value
    drawn["journal_bytes_max"] = rng.choice(_JOURNAL_BYTES)
    drawn["open_segments_max"] = rng.choice(_OPEN_SEGMENTS)
    return drawn


def missing() -> list[str]:
    """Return the constants that their modules do not have any more."""
    return [
        f"{module}.{name}"
        for name, (module, _) in _CHOICES.items()
        if not hasattr(importlib.import_module(module), name)
    ]


@contextmanager
def replaced(constants: Mapping[str, Value]) -> Iterator[None]:
    """Replace constants in all modules of the daemon that have them, for a while."""
    undo: list[tuple[object, str, object]] = []
    store_defaults = MetadataStore.open.__func__.__kwdefaults__  # type: ignore[attr-defined]
    store_before = dict(store_defaults)
    segments_before = OpenFileCache.__init__.__defaults__
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("dlogd.")]
    for name, value in constants.items():
        for module in modules:
            if name in _CHOICES and hasattr(module, name):
                undo.append((module, name, getattr(module, name)))
                setattr(module, name, value)
    store_defaults["journal_bytes_max"] = constants["journal_bytes_max"]
    OpenFileCache.__init__.__defaults__ = (constants["open_segments_max"],)
    try:
        yield
    finally:
        for owner, name, before in reversed(undo):
            setattr(owner, name, before)
        store_defaults.update(store_before)
        OpenFileCache.__init__.__defaults__ = segments_before
