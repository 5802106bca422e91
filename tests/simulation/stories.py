"""The stories of holes in tests/unit, each told with its hole open: else it may be one that cannot
fail.

A story is a test whose name begins with a hole, as `test_h12_...`; the hole's mutants are those
that have it in their names. Stories of real processes (tests/cluster) are out of reach: what is
patched here is not patched there. H4, H7, H10, H20, L3 to L5 and L7 to L9 have no others.
"""

import asyncio
import contextlib
import errno
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlog.batch.header import BATCH_STRUCT
from dlogd.metadata.machine import node as node_steps
from dlogd.metadata.machine import topic
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.replication.leader.follower_partition import FollowerPartition
from dlogd.replication.partition.leader_state import FollowerProgress, LeaderState
from dlogd.storage.log import flusher
from dlogd.storage.log.log_reader import LogReader
from dlogd.storage.log.partition_log import PartitionLog
from tests.property import metadata_mutants
from tests.simulation import mutants as node_mutants
from tests.simulation import raft_mutants
from tests.simulation.fleet import mutants as fleet_mutants
from tests.simulation.patches import Patch, patched

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests/unit"
TIMEOUT_S = 120
"""A story whose hole is open may wait for what never comes."""


def _remember_promises(original: Any) -> Any:
    def begin(self: Any, node_epoch: int) -> None:
        promised = self.promised_offset
        original(self, node_epoch)
        self.promised_offset = promised

    return begin


def _propose_anybody(_: Any) -> Any:
    def propose(self: Any, joining: Any) -> None:
        for each in joining:
            self.followers.setdefault(each, FollowerProgress(each, 0))
        self.pending = tuple(joining)
        self._count()

    return propose


def _give_out_offsets(_: Any) -> Any:
    def append_verbatim(self: Any, batch: memoryview) -> Any:
        fields = BATCH_STRUCT.unpack_from(batch)
        return self.append(batch, fields, leader_epoch=fields[2])

    return append_verbatim


def _take_any_life(_: Any) -> Any:
    return lambda image, node_id, _node_epoch: image.nodes[node_id]


def _take_any_topic(_: Any) -> Any:
    return lambda image, _topic_id: next(iter(image.topics.values()))


def _end_is_inclusive(original: Any) -> Any:
    def read(self: Any, offset: int, max_bytes: int, end_offset: int, **options: Any) -> Any:
        return original(self, offset, max_bytes, end_offset + 1, **options)

    return read


def _do_nothing(_: Any) -> Any:
    return lambda *_arguments, **_options: None


def _go_on(original: Any) -> Any:
    """Take an error for a full disk, which is tried again."""
    return lambda self, error: original(self, OSError(errno.ENOSPC, str(error)))


def _keep_the_dead(original: Any) -> Any:
    def update(self: Any, facts: Any, now_ms: int) -> None:
        original(self, replace(facts, isr=(*facts.isr, *self.isr)), now_ms)

    return update


def _at_the_next_tick(original: Any) -> Any:
    def on_progress(*arguments: Any) -> None:
        asyncio.get_running_loop().call_later(0.01, original, *arguments)

    return on_progress


OPENED: dict[str, Patch] = {
    "test_l1_a_silent_follower_is_waited_for_until_it_leaves": (
        *(LeaderState, "update", _keep_the_dead),
    ),
    "test_l6_all_is_said_when_it_is_so_and_not_at_the_next_tick": (
        *(FollowerPartition, "on_progress", _at_the_next_tick),
    ),
    "test_h2_followers_append_verbatim_and_only_what_comes_next": (
        *(PartitionLog, "append_verbatim", _give_out_offsets),
    ),
    "test_h6_an_expansion_counts_from_before_it_is_proposed": (
        *(LeaderState, "propose", _do_nothing),
    ),
    "test_h8_what_was_promised_in_an_earlier_life_does_not_count": (
        *(FollowerProgress, "begin", _remember_promises),
    ),
    "test_h9_a_node_without_a_replica_is_no_follower": (
        *(LeaderState, "propose", _propose_anybody),
    ),
    "test_h11_a_restarted_node_is_another_one": (node_steps, "node_of", _take_any_life),
    "test_h14_an_error_of_a_flush_ends_the_log": (flusher.Flusher, "_on_error", _go_on),
    "test_h15_what_only_a_deposed_leader_had_in_its_log_goes": (
        *(RaftLog, "deleteEntriesFrom", _do_nothing),
    ),
    "test_h18_offset_equal_to_the_end_is_empty_and_beyond_is_out_of_range": (
        *(LogReader, "read", _end_is_inclusive),
    ),
    "test_h19_a_recreated_topic_is_another_topic": (topic, "topic_of", _take_any_topic),
}
"""What opens the hole in the part that a story is about, where no mutant of it does."""

UNOPENED = {
    "test_h21_no_node_keeps_a_consumers_position_for_itself": "no position is kept anywhere yet",
}
"""Stories whose hole nothing opens, and why."""


def stories() -> dict[str, list[str]]:
    """Return the stories of tests/unit, as `path::test`, by their hole."""
    found: dict[str, list[str]] = {}
    for path in sorted(UNIT.rglob("test_*.py")):
        for match in re.finditer(r"^def (test_([hl]\d+)_\w+)\(", path.read_text(), re.MULTILINE):
            node = f"{path.relative_to(ROOT)}::{match[1]}"
            found.setdefault(match[2].upper(), []).append(node)
    return found


def mutants_of(hole: str) -> dict[str, Sequence[Patch]]:
    """Return what opens a hole."""
    known: dict[str, Sequence[Patch]] = {
        **{name: (patch,) for name, patch in node_mutants.MUTANTS.items()},
        **raft_mutants.MUTANTS,
        **fleet_mutants.MUTANTS,
        **{
            name: ((owner, attribute, lambda _, wrong=wrong: wrong),)  # type: ignore[misc]
            for name, (owner, attribute, wrong) in metadata_mutants.MUTANTS.items()
        },
    }
    return {name: each for name, each in known.items() if re.search(rf"\b{hole}\b", name)}


def openings(hole: str, node: str) -> list[Sequence[Patch]]:
    """Return what opens a hole for one of its stories: the part's own way first, it is quickest."""
    own = OPENED.get(node.partition("::")[2])
    return [*([[own]] if own else []), *mutants_of(hole).values()]


def green(hole: str) -> list[str]:
    """Return the stories of a hole that never fail while it is open."""
    return [node for node in stories()[hole] if not _sees(hole, node)]


def _sees(hole: str, node: str) -> bool:
    if node.partition("::")[2] in UNOPENED:
        return True
    # Before any patch also because the test's own imports must be of the right functions.
    if is_red(node):
        raise RuntimeError(f"{node} fails although its hole is closed")
    for patches in openings(hole, node):
        with patched(patches):
            if is_red(node):
                return True
    return False


def is_red(node: str) -> bool:
    """Return whether a story fails as things are."""
    with contextlib.redirect_stdout(io.StringIO()):
        options = ["-q", "-n0", "-p", "no:cacheprovider", "-p", "no:logging"]
        code = pytest.main([*options, f"--timeout={TIMEOUT_S}", str(ROOT / node)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"{node}: {code!r}")
    return code == pytest.ExitCode.TESTS_FAILED
