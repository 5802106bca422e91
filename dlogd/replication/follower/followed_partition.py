"""State of a followed partition: leader, epoch, subscription.

Made by `dlogd.replication.follower.fetcher_manager`, moved by
`dlogd.replication.follower.subscriptions`. A change of leader or epoch makes a new one: what was
said about the old one then has no handle any more.
"""

import asyncio
from typing import Protocol

from dlog.errors import WireError
from dlog.types import LeaderEpoch, NodeId, Offset
from dlogd.replication.follower.follower_states import (
    IS_SUBSCRIBED,
    MAY_ASK,
    Effect,
    Event,
    State,
    step,
)
from dlogd.replication.partition.partition import Partition
from dlogd.replication.placement_diff import Key
from dlogd.replication.protocol import Progress, Subscription

NO_HANDLE = -1
REST_S_MIN = 0.01
REST_S_MAX = 1.0
HOLD_S = 1.0
"""So long all partitions of a leader wait for one that is on one of several directories."""


class Follows(Protocol):
    """The fetcher, as its followings see it."""

    def report(self, following: "FollowedPartition") -> None:
        """Tell the leader how far it is, together with others."""

    def subscribe(self, following: "FollowedPartition") -> None:
        """Begin, or begin anew."""

    def remove(self, following: "FollowedPartition") -> None:
        """Follow it no more."""


class FollowedPartition:
    """Invariants: `handle` is unique on its connection, NO_HANDLE in states that have none; `timer`
    runs in state RESTING alone.
    """

    __slots__ = (
        "ceiling",
        "error",
        "fetcher",
        "handle",
        "hold_s",
        "key",
        "leader_epoch",
        "leader_id",
        "leader_start",
        "partition",
        "rest_s",
        "said",
        "state",
        "timer",
        "trimming",
    )

    def __init__(
        self,
        key: Key,
        partition: Partition,
        leader_id: NodeId,
        leader_epoch: LeaderEpoch,
        fetcher: Follows,
    ) -> None:
        self.key = key
        self.partition = partition
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.fetcher = fetcher
        self.state = State.DETACHED
        self.handle = NO_HANDLE
        self.trimming = False
        self.leader_start = 0
        """Where the leader's log begins."""
        self.ceiling: int | None = None
        """The leader is not told of more for now: it would send on (KIP-73)."""
        self.said = 0
        """What the leader was told last to be promised here."""
        self.rest_s = 0.0
        self.error: WireError | None = None
        """Why its log did not take what came last."""
        self.hold_s = HOLD_S
        """So long it may hold up the others; more when it takes what it was not in time for."""
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_ended(self) -> bool:
        """Whether this is over for good."""
        return self.state is State.ENDED

    @property
    def is_subscribed(self) -> bool:
        """Whether the leader sends."""
        return self.state in IS_SUBSCRIBED

    @property
    def may_ask(self) -> bool:
        """Whether a subscription may be sent: twice, the leader would end the first, for ever."""
        return self.state in MAY_ASK and not self.partition.is_cutting and self.can_follow

    @property
    def is_current(self) -> bool:
        """Whether this is still what the partition does."""
        partition = self.partition
        return (
            not self.is_ended
            and not partition.is_ended
            and partition.closed is not None
            and partition.leader_epoch == self.leader_epoch
        )

    @property
    def can_follow(self) -> bool:
        """Whether its log takes records."""
        return self.is_current and self.partition.log.failed is None

    def on_promised(self) -> None:
        """The log has promised more."""
        if self.is_subscribed:
            self.fetcher.report(self)

    def subscription(self) -> Subscription:
        """Return what the leader is told at the beginning: nothing earlier matters any more."""
        plog = self.partition.log
        self.ceiling = None
        self.said = min(plog.promised_offset, plog.log_end_offset)
        return Subscription(
            handle=self.handle,
            topic_id=self.key[0],
            partition=self.key[1],
            leader_epoch=self.leader_epoch,
            fetch_offset=plog.log_end_offset,
            last_epoch=plog.last_epoch,
            log_start_offset=plog.log_start_offset,
            promised_offset=plog.promised_offset,
        )

    def progress(self) -> Progress | None:
        """Return what the leader is told from then on; None: nothing for the moment.

        A log that begins where a batch of the leader's does may have promised less than before.
        """
        plog = self.partition.log
        promised, end = plog.promised_offset, plog.log_end_offset
        if self.ceiling is not None:
            promised = Offset(min(promised, self.ceiling))
            end = Offset(min(end, self.ceiling))
        if promised < self.said or not self.is_subscribed:
            return None
        self.said = promised
        return self.handle, promised, end, plog.log_start_offset

    def next_rest_s(self, least_s: float = REST_S_MIN, most_s: float = REST_S_MAX) -> float:
        """Return how long to rest after a refusal; longer with each until something arrives."""
        self.rest_s = min(max(self.rest_s * 2, least_s), most_s)
        return self.rest_s

    def on(self, event: Event) -> tuple[Effect, ...]:
        """Change the state; return what is to be done about it."""
        self.state, effects = step(self.state, event)
        if self.state not in IS_SUBSCRIBED:
            self.handle = NO_HANDLE
        return effects

    def stop_resting(self) -> None:
        """Rest no longer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
