"""Holes that named tests see, each with these tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dlog.client.producing.partition_queue import PartitionQueue
from dlogd.controller.leases import LeaseTable
from dlogd.controller.own_lease import OwnLease
from dlogd.metadata import journal_format
from dlogd.metadata.raft import appends, machine_state, pysyncobj_adapter
from dlogd.metadata.raft.appends import Append
from dlogd.metadata.raft.consensus import RaftCore
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.receiving import SnapshotReceiver
from dlogd.metadata.raft.replication import Replication
from dlogd.node import replica_proof
from dlogd.replication.follower.subscriptions import Subscriptions
from dlogd.replication.leader.follower_partition import FollowerPartition
from dlogd.replication.partition.leader_state import LeaderState
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_state import ProducerStates
from dlogd.storage.directory import replaced_marker
from dlogd.storage.directory.data_directory import DataDirectory
from dlogd.storage.io import checkpoint_files
from dlogd.storage.log.partition_log import PartitionLog
from tests.simulation import (
    account_mutants,
    bound_mutants,
    content_mutants,
    proof_mutants,
    raft_mutants,
)
from tests.simulation.fleet.mutants import grant_to_any_life, take_any_grant
from tests.simulation.patches import Patch

HOLES = "tests/unit/dlogd/metadata/raft/test_raft_holes.py"
REPLICATION = "tests/unit/dlogd/metadata/raft/test_raft_replication.py"
LEASES = "tests/unit/dlogd/controller/test_lease_table.py"
PROOFS = "tests/unit/dlogd/node/test_start_proof.py"


def _back_off_by_one(original: Any) -> Any:
    def normalise(*arguments: Any) -> Append:
        return replace(original(*arguments), backoff=None)

    return normalise


def _send_without_bounds(original: Any) -> Any:
    def send(self: Any, peer: Any, progress: Any, *, heartbeat: bool) -> None:
        progress.position_sent = progress.position_acked
        original(self, peer, progress, heartbeat=True)

    return send


def _forget_what_was_proposed(original: Any) -> Any:
    def begin_again(self: Any, epoch_start_offset: Any) -> None:
        original(self, epoch_start_offset)
        self.pending = ()

    return begin_again


def _cut_when_there_is_time(original: Any) -> Any:
    """Take note of a cut only when its work begins: the role may be another one by then."""

    def spawn(self: Any, following: Any, work: Any) -> None:
        original(self, following, work)
        following.partition.is_cutting = False

    return spawn


def _believe(_: Any) -> Any:
    return lambda *_: True


def _as_pysyncobj_has_it(original: Any) -> Any:
    return getattr(pysyncobj_adapter.SyncObj, original.__name__)


def _do_nothing(_: Any) -> Any:
    return lambda *_: None


def _roll_always(original: Any) -> Any:
    def roll(self: Any) -> None:
        ceiling, self.cut_ceiling = self.cut_ceiling, None
        original(self)
        self.cut_ceiling = ceiling

    return roll


def _replace_only(_: Any) -> Any:
    def save_life(self: Any, life: Any) -> None:
        checkpoint_files.replace_file(
            self._root, checkpoint_files.LIFE, checkpoint_files.encode_life(life)
        )

    return save_life


class _With:
    """An object as it is, but for some attributes."""

    def __init__(self, original: object, **attributes: object) -> None:
        self._original = original
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _take_what_is_flushed(original: Any) -> Any:
    def take(self: Any, bytes_max: int, *, is_first: bool) -> Any:
        partition, plog = self.partition, self.partition.log
        flushed = _With(plog, log_end_offset=plog.flushed_offset)
        self.partition, self._place = _With(partition, log=flushed), None
        try:
            return original(self, bytes_max, is_first=is_first)
        finally:
            self.partition = partition

    return take


def _have_what_is_flushed(original: Any) -> Any:
    return property(
        lambda self: original.fget(self) and self.sent_offset < self.partition.log.flushed_offset
    )


def _feed_after_the_flush(original: Any) -> Any:
    def on_promised(self: Any, log: Any) -> None:
        original(self, log)
        for each in self._subscribers.values():
            each.on_append()

    return on_promised


# Patches, and the tests of which one at least must fail.
TESTED: dict[str, tuple[Sequence[Patch], Sequence[str]]] = {
    "1.2.2 the log is cleared and written again": (
        ((RaftLog, "_rewrite", raft_mutants.rewrite_in_place),),
        (f"{HOLES}::test_no_crash_in_a_compaction_loses_an_entry_or_the_vote",),
    ),
    "1.2.3 a child of the process takes snapshots": (
        ((RaftCore, "_SyncObj__tryLogCompaction", _as_pysyncobj_has_it),),
        (f"{HOLES}::test_snapshots_of_pysyncobj_are_out_of_reach",),
    ),
    "1.3 sums are not checked": (
        ((journal_format, "_frame_at", raft_mutants.accept_torn_frames),),
        (f"{HOLES}::test_no_crash_in_an_append_makes_entries_up",),
    ),
    "1.5.2 chunks of a snapshot commit what stands here": (
        ((SnapshotReceiver, "receive", raft_mutants.commit_by_chunks),),
        (f"{HOLES}::test_a_chunk_of_a_snapshot_moves_nothing_before_the_last",),
    ),
    "1.5.3 replies of other terms count": (
        ((Replication, "_heard", raft_mutants.count_replies_of_any_term),),
        (f"{REPLICATION}::test_a_reply_of_an_earlier_leadership_does_not_count",),
    ),
    "1.5.5 backing off goes entry by entry": (
        ((appends, "normalise", _back_off_by_one),),
        (
            "tests/unit/dlogd/metadata/raft/test_raft_appends.py::test_backing_off_skips_a_whole_term",
        ),
    ),
    "1.5.7 a snapshot is sent again and again": (
        ((Replication, "_send_snapshot", _send_without_bounds),),
        (f"{REPLICATION}::test_a_snapshot_goes_chunk_by_chunk_and_then_entries_follow",),
    ),
    "1.5.8 what is larger than a message is left behind": (
        ((Replication, "_take", raft_mutants.take_small_ones),),
        (f"{HOLES}::test_commands_larger_than_a_message_arrive_whole",),
    ),
    "3.1 software that is too old goes on": (
        ((machine_state, "expect_known", _do_nothing),),
        (
            "tests/unit/dlogd/metadata/raft/test_raft_levels.py::test_a_snapshot_of_the_level_is_not_installed",
        ),
    ),
    "H11 a lease counts for any life and controller": (
        ((OwnLease, "on_grant", take_any_grant),),
        (f"{LEASES}::test_grants_for_others_and_of_the_deposed_do_not_count",),
    ),
    "H11 leases are granted to former lives": (
        ((LeaseTable, "on_beat", grant_to_any_life),),
        (f"{LEASES}::test_only_the_registered_life_is_granted",),
    ),
    "followers are fed only what their leader has flushed": (
        (
            (FollowerPartition, "take", _take_what_is_flushed),
            (FollowerPartition, "has_more", _have_what_is_flushed),
            (Partition, "on_promised", _feed_after_the_flush),
        ),
        (
            "tests/unit/dlogd/replication/test_flush_and_replication.py"
            "::test_all_acknowledge_in_the_time_of_one_flush",
        ),
    ),
    "2.2 a log is cut although it leads by then": (
        ((Subscriptions, "_spawn_cut", _cut_when_there_is_time),),
        (
            "tests/unit/dlogd/replication/follower/test_following.py"
            "::test_nobody_leads_or_follows_from_the_moment_that_a_cut_is_decided",
        ),
    ),
    "2.5 what was proposed is forgotten with the lease": (
        ((LeaderState, "begin_again", _forget_what_was_proposed),),
        (
            "tests/unit/dlogd/replication/leader/test_isr_keeper.py"
            "::test_an_expansion_counts_when_its_lease_was_lost_and_came_back",
        ),
    ),
    "2.9 what a crash may have cost is proven": (
        ((replica_proof, "_is_whole", _believe),),
        (f"{PROOFS}::test_after_a_crash_only_what_was_always_flushed_is_whole",),
    ),
    "2.9 an old copy of a disk is proven": (
        ((replica_proof, "_is_trusted", _believe),),
        (f"{PROOFS}::test_an_old_copy_proves_nothing",),
    ),
    "2.9 nobody notes which copy a failed directory has given up": (
        ((replaced_marker, "note", _do_nothing),),
        (
            "tests/unit/dlogd/storage/test_manager.py::test_a_directory_that_comes_back_has_the_older_copy",
        ),
    ),
    "2.9 a full disk forgets whose life it was": (
        ((DataDirectory, "save_life", _replace_only),),
        (
            "tests/unit/dlogd/storage/test_manager_directories.py::test_a_full_directory_knows_whose_life_it_is",
        ),
    ),
    "2.2 a log rolls while its end is cut": (
        ((PartitionLog, "roll", _roll_always),),
        (
            "tests/unit/dlogd/storage/log/test_cuts_and_rolls.py::test_no_segment_begins_beyond_the_new_end",
        ),
    ),
    "1 producers grow old when the clock is set": (
        ((ProducerStates, "shift", _do_nothing),),
        (
            "tests/unit/dlogd/replication/partition/test_producers.py::test_a_clock_that_is_set_forward_lets_nobody_expire",
        ),
    ),
    "1 a producer runs further ahead than a leader remembers": (
        ((PartitionQueue, "_is_in_reach", _believe),),
        (
            "tests/unit/dlog/client/producing/test_producer_window.py"
            "::test_no_more_goes_than_lets_the_oldest_be_known_again",
        ),
    ),
    **bound_mutants.TESTED,
    **proof_mutants.TESTED,
    **account_mutants.TESTED,
    **content_mutants.TESTED,
}
