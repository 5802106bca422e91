"""State of a leader: progress of followers, high watermark, lag.

Pure: no clock, no I/O. A follower is credited only with what it has said that it *promised* (its
flushed offset under `flush.policy: always`), in this leader epoch. The watermark
is the least promised offset of the *maximal* ISR: the members that the metadata have committed and
the expansions that are still proposed, because each of them may be elected.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dlog.types import LeaderEpoch, NodeId, Offset, PartitionEpoch

UNKNOWN = Offset(-1)
NEAR_MS = 200
"""Who has what the leader had so short a time ago is waited for, so that it can join the ISR."""
WAIT_MS_MAX = 1_000
PATIENCE_MS = 10_000
"""How long nobody waits for who has been waited for in vain."""
_LONG_AGO_MS = -(1 << 40)
_FIRST = PartitionEpoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What the metadata say about a partition to the node that leads it."""

    followers: tuple[NodeId, ...] = ()  # all replicas but this one
    isr: tuple[NodeId, ...] = ()  # those of them that are in sync
    min_isr: int = 1
    partition_epoch: PartitionEpoch = _FIRST


ALONE = Leadership()


class FollowerProgress:
    """How far one follower is, as the leader knows; changed in place.

    `caught_up_ms`: when it last held all that the leader had at that time (Kafka's
    `lastCaughtUpTimeMs`): how long it lags is a time, never a count (KIP-16).
    """

    __slots__ = (
        "_end_at_mark",
        "_mark_ms",
        "awaited_ms",
        "behind_ms",
        "caught_up_ms",
        "log_end_offset",
        "log_start_offset",
        "node_epoch",
        "node_id",
        "promised_offset",
    )

    def __init__(self, node_id: NodeId, now_ms: int) -> None:
        self.node_id = node_id
        self.node_epoch = -1
        """The life of the node that follows; -1: none does."""
        self.promised_offset = UNKNOWN
        self.log_end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.caught_up_ms = now_ms
        self._end_at_mark = Offset(0)
        self._mark_ms = _LONG_AGO_MS
        self.behind_ms = -_LONG_AGO_MS
        """How long it took to hold what the leader had at some moment, when that was seen last."""
        self.awaited_ms = _LONG_AGO_MS
        """Since when, or until when, the watermark waited for it as if it were in sync."""

    def begin(self, node_epoch: int) -> None:
        """It begins to follow, or anew: nothing that it said before counts."""
        self.node_epoch = node_epoch
        self.promised_offset = self.log_end_offset = self.log_start_offset = UNKNOWN
        self._end_at_mark, self._mark_ms = Offset(0), _LONG_AGO_MS
        self.behind_ms = -_LONG_AGO_MS

    def end(self) -> None:
        """It follows no more. What it has promised stays promised, in this epoch."""
        self.node_epoch = -1

    def on_progress(self, promised: int, end: int, leader_end: int, now_ms: int) -> None:
        """It holds everything below `promised` safely; its log ends at `end`."""
        self.promised_offset = Offset(promised)
        self.log_end_offset = Offset(end)
        if promised >= leader_end:
            self.caught_up_ms = now_ms
        elif promised >= self._end_at_mark:
            # What the leader had at that time, it has now.
            self.caught_up_ms = max(self.caught_up_ms, self._mark_ms)
        else:
            # Words may come more often than one of them takes: the mark stays until it is reached.
            return
        self.behind_ms = now_ms - self._mark_ms
        self._end_at_mark = Offset(leader_end)
        self._mark_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_ms_max: int) -> bool:
        """Return whether it lags less than `lag_ms_max`; with all there is it never does."""
        if self.promised_offset >= leader_end:
            self.caught_up_ms = now_ms
            return True
        return now_ms - self.caught_up_ms <= lag_ms_max


class LeaderState:
    """One leader epoch of one partition, seen by its leader.

    Invariant: `isr` are members besides the leader, `pending` those proposed and not yet committed.
    """

    __slots__ = (
        "_counted",
        "awaited",
        "epoch_start_offset",
        "followers",
        "isr",
        "leader_epoch",
        "min_isr",
        "partition_epoch",
        "pending",
    )

    def __init__(self, leader_epoch: LeaderEpoch, epoch_start_offset: Offset) -> None:
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = epoch_start_offset
        """The log's end when it began to lead: who lacks what is below has not caught up."""
        self.partition_epoch = PartitionEpoch(0)
        self.min_isr = 1
        self.isr: tuple[NodeId, ...] = ()
        self.pending: tuple[NodeId, ...] = ()
        self.awaited: tuple[NodeId, ...] = ()
        """About to join: under constant load they would never meet a watermark that does not wait
        for them, since their word takes its time."""
        self.followers: dict[NodeId, FollowerProgress] = {}
        self._counted: list[FollowerProgress] = []

    @property
    def isr_count(self) -> int:
        """How many are in sync by the metadata, the leader included."""
        return 1 + len(self.isr)

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        """Return whom the watermark waits for, besides the leader."""
        return tuple(progress.node_id for progress in self._counted)

    def update(self, facts: Leadership, now_ms: int) -> None:
        """Take over what the metadata say; a newer partition epoch settles what was proposed."""
        known = self.followers
        self.followers = {
            each: known.get(each) or FollowerProgress(each, now_ms) for each in facts.followers
        }
        self.isr = tuple(each for each in facts.isr if each in self.followers)
        self.awaited = tuple(
            each for each in self.awaited if each in self.followers and each not in self.isr
        )
        self.min_isr = facts.min_isr
        if facts.partition_epoch != self.partition_epoch:
            self.pending = ()
        self.partition_epoch = facts.partition_epoch
        self._count()

    def begin_again(self, epoch_start_offset: Offset) -> None:
        """Lead on in the same epoch after a time without a lease: followers begin anew.

        What was proposed may still come true, so it goes on to count.
        """
        self.epoch_start_offset = epoch_start_offset
        self.followers = {}
        self.awaited = ()
        self._counted = []

    def propose(self, joining: Iterable[NodeId]) -> None:
        """Count on members that are proposed, from before the proposal leaves."""
        self.pending = tuple(each for each in joining if each in self.followers)
        self._count()

    def withdraw(self) -> None:
        """A proposal was refused for good."""
        self.pending = ()
        self._count()

    def wait_for(self, progress: FollowerProgress, log_start_offset: int, now_ms: int) -> bool:
        """Let the watermark wait for a follower near enough to join soon; return whether it does.

        It does so for `WAIT_MS_MAX`, and then not again for a while.
        """
        if (
            progress.behind_ms <= NEAR_MS
            and progress.node_id not in self.awaited
            and progress.log_start_offset >= log_start_offset
            and now_ms - progress.awaited_ms > PATIENCE_MS
        ):
            progress.awaited_ms = now_ms
            self.awaited = (*self.awaited, progress.node_id)
            self._count()
            return True
        return False

    def release(self, node_id: NodeId) -> bool:
        """Wait no more for a follower that has gone, or begins anew; return whether anybody did."""
        if node_id not in self.awaited:
            return False
        self.awaited = tuple(each for each in self.awaited if each != node_id)
        self._count()
        return True

    def stop_waiting(self, now_ms: int) -> bool:
        """Wait no more for who takes too long; return whether anybody did."""
        known = self.followers
        still = tuple(
            each for each in self.awaited if now_ms - known[each].awaited_ms <= WAIT_MS_MAX
        )
        if still == self.awaited:
            return False
        self.awaited = still
        self._count()
        return True

    def _count(self) -> None:
        members = dict.fromkeys((*self.isr, *self.pending, *self.awaited))
        self._counted = [self.followers[each] for each in members if each in self.followers]

    @property
    def is_short(self) -> bool:
        """Whether the ISR is smaller than it has to be: nothing is acknowledged."""
        return 1 + len(self.isr) < self.min_isr

    def watermark(self, own_promised: int, present: int) -> Offset:
        """Return the high watermark, at least `present`.

        It rests while the ISR is smaller than `min_isr` (KIP-966): whoever leaves such an ISR stays
        eligible, because it has all that was acknowledged.
        """
        if self.is_short:
            return Offset(present)
        lowest = own_promised
        for progress in self._counted:
            if progress.promised_offset < lowest:
                lowest = progress.promised_offset
        return Offset(max(lowest, present))

    def low_watermark(self, own_start: int) -> Offset:
        """Return where all logs in sync begin or have begun: nobody shows what is below."""
        starts = [progress.log_start_offset for progress in self._counted]
        return Offset(min((own_start, *starts)))

    def may_join(
        self, progress: FollowerProgress, high_watermark: int, log_start_offset: int
    ) -> bool:
        """Return whether a follower may be proposed for the ISR.

        What was deleted must be gone from its log as well: it may lead at once.
        """
        return (
            progress.node_id not in self.isr
            and progress.node_epoch >= 0
            and progress.promised_offset >= high_watermark
            and progress.promised_offset >= self.epoch_start_offset
            and progress.log_start_offset >= log_start_offset
        )

    def laggards(self, leader_end: int, now_ms: int, lag_ms_max: int) -> list[NodeId]:
        """Return the members that have lagged for longer than `lag_ms_max`."""
        return [
            each
            for each in self.isr
            if not self.followers[each].is_caught_up(leader_end, now_ms, lag_ms_max)
        ]
