"""Known holes of replication, opened again; the simulation of clusters must see each.

Names begin with the hole's number in the analysis of the tutorial's design, or with the rule.
"""

from dataclasses import replace
from typing import Any

from dlog.batch.header import BATCH_STRUCT
from dlog.errors import NONE
from dlog.types import NO_EPOCH, ZERO_TOPIC_ID
from dlogd.metadata.machine import alter_partition
from dlogd.metadata.machine.election import _Draft
from dlogd.node.replication_setup import ReplicationSetup
from dlogd.replication import replica_manager, role_assigner
from dlogd.replication.follower import follower_append
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.leader import follower_sessions
from dlogd.replication.leader.follower_partition import FollowerPartition
from dlogd.replication.leader.isr import IsrKeeper
from dlogd.replication.partition import batch_validation
from dlogd.replication.partition.leader_state import LeaderState
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.pending_acks import PendingAcks
from dlogd.replication.replica_repair import ReplicaRepair
from dlogd.server.handlers.fetch import FetchWork
from dlogd.storage import log_manager
from dlogd.storage.log import log_recovery
from dlogd.storage.log.log_state import LogState
from dlogd.storage.log_manager import LogManager
from dlogd.storage.repair import scrubber
from tests.fakes.engine import MemoryEngine
from tests.simulation import mutants as node_mutants
from tests.simulation.patches import Patch


def _do_nothing(_: Any) -> Any:
    return lambda *_arguments, **_options: None


def _ignore_divergence(original: Any) -> Any:
    """Cut followers that are longer, and ask nobody for his history."""

    def difference(partition: Any, subscription: Any) -> Any:
        found = original(partition, subscription)
        end = partition.log.log_end_offset
        if found is not None and found.error_code == NONE and subscription.fetch_offset <= end:
            return None
        return found

    return difference


def _cut_nobody(original: Any) -> Any:
    """Take whoever is ahead, or has another history, for a follower that has caught up."""

    def difference(partition: Any, subscription: Any) -> Any:
        found = original(partition, subscription)
        return None if found is not None and found.error_code == NONE else found

    return difference


def _credit_up_to_the_end(original: Any) -> Any:
    def on_progress(self: Any, promised: int, end: int, start: int, now_ms: int) -> None:
        own_end = self.partition.log.log_end_offset
        original(self, min(promised, own_end), min(end, own_end), start, now_ms)

    return on_progress


def _take_what_comes(_: Any) -> Any:
    def check(buffer: Any, start: int, end: int, expected_offset: int) -> Any:
        return BATCH_STRUCT.unpack_from(buffer, start)

    return check


def _skip_now_and_then(original: Any) -> Any:
    """Send on as if something had been sent that was not."""

    def take(self: Any, bytes_max: int, *, is_first: bool) -> Any:
        plog = self.partition.log
        if self.has_more and self.sent_offset % 7 == 3:
            self.sent_offset = min(self.sent_offset + 1, plog.log_end_offset)
        return original(self, bytes_max, is_first=is_first)

    return take


def _join_within_records(_: Any) -> Any:
    def may_join(self: Any, progress: Any, high_watermark: int, log_start_offset: int) -> bool:
        return (
            progress.node_id not in self.isr
            and progress.node_epoch >= 0
            and progress.promised_offset >= high_watermark - 100
        )

    return may_join


def _no_minimum(original: Any) -> Any:
    def update(self: Any, facts: Any, now_ms: int) -> None:
        original(self, replace(facts, min_isr=1), now_ms)

    return update


def _acknowledge_at_the_end(original: Any) -> Any:
    """With nobody left to wait for, what waits is as good as acknowledged."""

    def fail(self: Any, error: Any) -> None:
        self.all.settle_to(1 << 60)
        original(self, error)

    return fail


def _shrink_at_once(original: Any) -> Any:
    def propose(self: Any, key: Any, partition: Any, leader: Any, image: Any, isr: Any) -> None:
        leader.isr = tuple(each for each in leader.isr if each in isr)
        leader._count()
        partition._advance()
        original(self, key, partition, leader, image, isr)

    return propose


def _credit_what_is_sent(original: Any) -> Any:
    def row(self: Any, taken: Any) -> Any:
        found = original(self, taken)
        if taken.bytes and not self.awaits_word:
            self.progress.promised_offset = self.sent_offset
            self.partition._advance()
        return found

    return row


def _lenient_progress(original: Any) -> Any:
    def on_progress(self: Any, promised: int, end: int, start: int, now_ms: int) -> None:
        known = max(promised, self.progress.promised_offset)
        original(self, known, max(end, known), start, now_ms)

    return on_progress


def _feed_everybody(original: Any) -> Any:
    """Take every node for a replica."""

    def leadership(node_id: Any, image: Any, min_isr: int) -> Any:
        found = original(node_id, image, min_isr)
        others = tuple(each for each in range(1, 8) if each != node_id)
        return replace(found, followers=others)

    return leadership


def _follow_as_anybody(original: Any) -> Any:
    """Follow the leader of every log that is open here."""

    def on_role(self: Any, partition: Any, key: Any, image: Any) -> None:
        node_id = self._clustering.node_id
        others = [each for each in image.replicas if each != node_id]
        original(self, partition, key, replace(image, replicas=(*others, node_id)))

    return on_role


def _take_anybody_in(original: Any) -> Any:
    """Let the image have whom the leader names, replica or not."""

    def begin(self: Any, old: Any, rules: Any, change: Any) -> None:
        original(self, old, rules, change)
        others = [each for each in change.isr or () if each not in self.replicas]
        self.isr = (*self.isr, *others)

    return begin


def _drop_unless_leading_the_metadata(original: Any) -> Any:
    async def outcome_of(self: Any, *arguments: Any) -> Any:
        if self._store.progress.role != "leader":
            return None
        return await original(self, *arguments)

    return outcome_of


def _open_everything(_: Any) -> Any:
    return lambda topic, node_id: list(range(len(topic.partitions)))


def _judge_no_lease(_: Any) -> Any:
    return lambda self, error: (error, self._clock.now_us())


def _any_epoch(_: Any) -> Any:
    def check(self: Any, current_leader_epoch: int = -1) -> None:
        if self.is_ended:
            raise self.closed
        if self.leader is None and self.closed is not None:
            raise self.closed

    return check


def _lead_once_lead_always(original: Any) -> Any:
    """Go on as a leader whatever the image says, as long as nobody says that it leads anew."""

    def follow(self: Any, leader_epoch: Any, why: Any, **facts: Any) -> None:
        if self.closed is not None or self.is_ended:
            original(self, leader_epoch, why, **facts)

    return follow


def _need_no_lease(_: Any) -> Any:
    return lambda self: True


def _promise_what_is_in_memory(original: Any) -> Any:
    def progress(self: Any) -> Any:
        found = original(self)
        return found and (found[0], found[2], found[2], found[3])

    return progress


def _name_without_id(original: Any) -> Any:
    return lambda topic_partition, topic_id: original(topic_partition, ZERO_TOPIC_ID)


def _leave_the_files(_: Any) -> Any:
    async def delete(self: Any, topic_partition: Any, topic_id: Any) -> None:
        key = (topic_id, topic_partition.partition)
        opened, home = self.logs.pop(key, None), self._home_of(key)
        if home is not None:
            home.logs.pop(key, None)
            home.names.pop(key, None)
        if opened is not None:
            await opened.close()

    return delete


def _know_no_marks(original: Any) -> Any:
    def examine(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        found.mark = 0
        return found

    return examine


def _count_one_more(original: Any) -> Any:
    def advance(self: Any, flushed: int, promised: int) -> None:
        original(self, flushed, promised)
        self.flushed_offset = flushed + 1

    return advance


def _find_nothing(_: Any) -> Any:
    async def check(self: Any, place: Any) -> tuple[int, int]:
        return 0, 0

    return check


def _read_followers_beyond_watermark(original: Any) -> Any:
    unbounded = node_mutants._read_beyond_watermark(original)

    def read(self: Any, partition: Any, *arguments: Any) -> Any:
        follows = partition.closed is not None
        return (unbounded if follows else original)(self, partition, *arguments)

    return read


def _let_all_wait(_: Any) -> Any:
    def wait_us(self: Any, fed: Any, size: int) -> int:
        throttled = fed.partition.settings.leader_throttled
        if not self.limiter.is_limited or not throttled.holds(fed.key[1], self._node_id):
            return 0
        return int(self.limiter.may_send(size, self.clock.now_us()))

    return wait_us


DATA_MUTANTS: dict[str, tuple[Patch, ...]] = {
    "H1 nobody asks a follower for its history": (
        (follower_sessions, "difference", _ignore_divergence),
    ),
    "H1 nobody cuts his log": (
        (follower_sessions, "difference", _cut_nobody),
        (FollowerPartition, "on_progress", _credit_up_to_the_end),
    ),
    "H2 followers give out offsets": (
        (follower_append, "check_replicated", _take_what_comes),
        (FollowerPartition, "take", _skip_now_and_then),
    ),
    "H3 within a hundred records is in sync": ((LeaderState, "may_join", _join_within_records),),
    "H4 no minimum of the ISR": ((LeaderState, "update", _no_minimum),),
    "H5 a deposed leader acknowledges what waits": (
        (PendingAcks, "fail", _acknowledge_at_the_end),
        (PendingAcks, "_judge", _judge_no_lease),
    ),
    "H6 a shrink counts before it is committed": ((IsrKeeper, "_propose", _shrink_at_once),),
    "H7 ISR changes are lost where another node leads the metadata": (
        (IsrKeeper, "_outcome_of", _drop_unless_leading_the_metadata),
    ),
    "H8 followers are credited with what was sent": (
        (FollowerPartition, "row", _credit_what_is_sent),
        (FollowerPartition, "on_progress", _lenient_progress),
    ),
    "H9 any node is fed and counted": (
        (role_assigner, "leadership", _feed_everybody),
        (replica_manager, "mine", _open_everything),
        (ReplicationSetup, "_on_role", _follow_as_anybody),
        (alter_partition, "_check_members", _do_nothing),
        (_Draft, "__init__", _take_anybody_in),
    ),
    "H11 a zombie goes on as leader": (
        (Partition, "follow", _lead_once_lead_always),
        (PendingAcks, "_judge", _judge_no_lease),
        (Partition, "check_readable", _any_epoch),
    ),
    "H11 a leader goes on without a lease": (
        (role_assigner.RoleAssigner, "_is_leased", _need_no_lease),
        (PendingAcks, "_judge", _judge_no_lease),
    ),
    "H14 followers promise what is in memory": (
        (FollowedPartition, "progress", _promise_what_is_in_memory),
    ),
    "H14 nothing is flushed": ((MemoryEngine, "write", node_mutants._flush_nothing),),
    "H18 records above the watermark are read": (
        (FetchWork, "_read", node_mutants._read_beyond_watermark),
    ),
    "H19 a topic made anew finds the files of the old one": (
        (log_manager, "log_name", _name_without_id),
        (LogManager, "delete", _leave_the_files),
    ),
    "2.5 expansions under way do not count": ((LeaderState, "propose", _do_nothing),),
    "KIP-207 a new leader shows an old watermark": ((Partition, "check_watermark", _do_nothing),),
    "OffsetsChain a flush counts what is not there yet": ((LogState, "advance", _count_one_more),),
    "2.13 what has rotted is cut like a torn tail": (
        (log_recovery, "examine", _know_no_marks),
        (log_recovery._Recovery, "_judge_tail", _do_nothing),
        (log_recovery._Recovery, "_judge_gap", _do_nothing),
        (log_recovery._Recovery, "_check_end", _do_nothing),
    ),
    "2.13 the scrub finds nothing": ((scrubber.Scrubber, "_check", _find_nothing),),
    "2.13 nobody looks at leader epochs": (
        (LogState, "epoch_of_batch", lambda _: lambda *_: NO_EPOCH),
    ),
    "2.13 nobody mends": ((ReplicaRepair, "on_damage", _do_nothing),),
    "KIP-73 who is in sync waits for a throttle": (
        (follower_sessions.FollowerSessions, "wait_us", _let_all_wait),
    ),
    "KIP-392 followers are read beyond their watermark": (
        (FetchWork, "_read", _read_followers_beyond_watermark),
    ),
    "walk without the count": ((batch_validation, "walk_records", node_mutants._walk_to_the_end),),
    "believe the heads of plain batches": (
        (batch_validation, "_times_of", node_mutants._believe_plain_heads),
    ),
}

LIES = ("walk without the count", "believe the heads of plain batches")
"""Holes that only batches that lie can show."""

SHOWS = {
    "H1 nobody cuts his log": ("LogsAgree", "CommittedNeverLost"),
    "H2 followers give out offsets": ("LogsAgree", "CommittedNeverLost"),
    "H9 any node is fed and counted": ("IsrSubsetOfReplicas",),
    "H11 a zombie goes on as leader": ("AcknowledgedUnderLease", "CommittedNeverLost"),
}
"""How the violation begins by which a hole is known that could be seen for something else: for a
log that is never whole, one that is open where it should not be, rot that nobody mends."""
