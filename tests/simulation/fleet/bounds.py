"""Bounds of replication and storage that a run makes small, so that rare paths are common.

None of them may matter for what is right. Each is a name in one module of the daemon.
"""

import importlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

Value = int | float

# Module and name, and the values to choose from; the last is as it is.
_CHOICES: dict[str, tuple[Value, ...]] = {
    "dlogd.replication.leader.send_window.WINDOW_BYTES": (500, 20_000, 8 << 20),
    "dlogd.replication.leader.follower_session.FRAME_BYTES": (200, 3_000, 512 << 10),
    "dlogd.replication.leader.follower_session.ROWS_MAX": (1, 10_000),
    "dlogd.replication.leader.send_window.DISK_FRAMES_MAX": (1, 2),
    "dlogd.replication.leader.follower_session.WATERMARK_DELAY_S": (0.001, 0.1, 0.01),
    "dlogd.replication.leader.follower_sessions.SILENCE_S_MAX": (1.5, 6.0),
    "dlogd.replication.leader.follower_sessions.SWEEP_S": (0.3, 1.0),
    "dlogd.replication.follower.leader_fetcher.PING_S": (0.2, 1.0),
    "dlogd.replication.follower.leader_fetcher.SILENCE_S_MAX": (1.0, 6.0),
    "dlogd.replication.follower.leader_fetcher.TAKEN_BYTES_MAX": (100, 1 << 20),
    "dlogd.replication.follower.subscriptions.SUBSCRIBE_ROWS_MAX": (1, 5_000),
    "dlogd.replication.follower.leader_fetcher.IDLE_PINGS_MAX": (1, 10),
    "dlogd.replication.leader.isr.LOOK_S": (0.1, 1.0),
    "dlogd.replication.leader.isr.PROPOSE_TIMEOUT_MS": (100, 5_000),
    "dlogd.replication.leader.isr.PROPOSALS_MAX": (1, 512),
    "dlogd.replication.replica_manager.RETRY_S": (0.2, 5.0),
    "dlogd.replication.replica_manager.OPENING_COUNT_MAX": (1, 64),
    "dlogd.replication.partition.snapshot_schedule.SNAPSHOT_BYTES": (500, 16 << 20),
    "dlogd.replication.partition.snapshot_schedule.SNAPSHOT_PAUSE_S": (0.1, 5.0),
    "dlogd.storage.log.log_reader.CURSORS_MAX": (1, 32),
    "dlogd.storage.log.batch_lookup._PEEK_BYTES": (100, 8192),
    "dlogd.storage.segment.batch_scan.WINDOW_BYTES": (512, 1 << 20),
    "dlogd.storage.log.flusher.SYNCHRONOUS_BYTES_MAX": (0, 64 << 10),
    "dlogd.net.send_turns.SLICE_BYTES": (500, 256 << 10),
    "dlogd.net.socket_writer.TRANSPORT_CHUNK_BYTES": (700, 64 << 10),
    "dlogd.net.reply_queue.GATHER_COUNT_MAX": (1, 64),
}

# The same, drawn behind those, so that what came later leaves them as they were drawn.
_LATER_CHOICES: dict[str, tuple[Value, ...]] = {
    "dlogd.replication.replica_deletion.COUNT_MAX": (1, 64),
    "dlogd.replication.replica_deletion.MOMENT_S": (0.01, 1.0),
}

# The same where disks are scrubbed (`rot_plan`), without which a run is over before they are.
ROT_CHOICES: dict[str, tuple[Value, ...]] = {
    "dlogd.storage.repair.scrubber.FIRST_AFTER_S": (0.1, 1.0),
    "dlogd.storage.repair.scrubber.LOOK_S": (0.1, 0.5),
    "dlogd.storage.repair.scrubber.PIECE_BYTES": (600, 128 << 10),
    "dlogd.storage.repair.scrubber.SAVE_INTERVAL_S": (0.1, 60.0),
    "dlogd.replication.replica_repair.REST_S_MIN": (0.1, 1.0),
    "dlogd.replication.replica_repair.REST_S_MAX": (1.0, 3.0),
    "dlogd.storage.segment.bad_ranges.PLACES_MAX": (8, 64),
    "dlogd.storage.segment.bad_ranges.REPEATS_MAX": (0, 2),
    "dlogd.storage.segment.bad_ranges.VOUCHED_REPEATS": (1, 1_000),
}


def draw_bounds(rng: random.Random) -> dict[str, Value]:
    """Return a random choice; about half of all stay as they are."""
    return _some(rng, _CHOICES) | _some(rng, _LATER_CHOICES)


def _some(rng: random.Random, choices: Mapping[str, tuple[Value, ...]]) -> dict[str, Value]:
    drawn = {name: rng.choice(values) for name, values in choices.items()}
    return {name: value for name, value in drawn.items() if rng.random() < 0.5}


def missing() -> list[str]:
    """Return the bounds that their modules do not have any more."""
    return [
        name for name in (*_CHOICES, *_LATER_CHOICES, *ROT_CHOICES) if not hasattr(*_place(name))
    ]


def _place(name: str) -> tuple[object, str]:
    module, _, attribute = name.rpartition(".")
    return importlib.import_module(module), attribute


@contextmanager
def bounded(values: Mapping[str, Value]) -> Iterator[None]:
    """Replace bounds for a while."""
    before = {name: getattr(*_place(name)) for name in values}
    try:
        for name, value in values.items():
            setattr(*_place(name), value)
        yield
    finally:
        for name, value in before.items():
            setattr(*_place(name), value)
