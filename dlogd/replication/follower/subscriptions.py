"""Subscriptions at one leader: carries out what the table of a followed partition's states says.

Part of `dlogd.replication.follower.leader_fetcher`. Subscriptions are sent together, as many as a
frame takes. A log is cut by a task of its own: from the moment that this is decided nobody may
lead, or be followed, with it. Owner: the event loop's thread.
"""

import logging
from collections.abc import Callable
from functools import partial

from dlog.errors import WireError
from dlog.types import Offset
from dlogd.replication import protocol
from dlogd.replication.follower.divergence import Cut
from dlogd.replication.follower.fetch_services import FetchServices
from dlogd.replication.follower.fetch_throttle import FetchThrottle
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.follower_states import Effect, Event
from dlogd.replication.follower.leader_connection import LeaderConnection
from dlogd.replication.follower.log_start_sync import LogStartSync
from dlogd.replication.follower.retry_backoff import RetryBackoff

log = logging.getLogger(__name__)

SUBSCRIBE_ROWS_MAX = 5_000


class Subscriptions:
    """Over one connection at a time. Life: `begin`, `end`; again.

    Invariant: `by_handle` holds those that the leader knows.
    """

    def __init__(
        self,
        services: FetchServices,
        schedule: Callable[[], None],
        report: Callable[[FollowedPartition], None],
    ) -> None:
        """`schedule` leads to a call of `send`."""
        self.by_handle: dict[int, FollowedPartition] = {}
        self.throttle = FetchThrottle(
            services.limiter,
            services.loop,
            services.clock,
            services.node_id,
            services.is_in_sync,
            self._go_on,
        )
        self.backoff = RetryBackoff(services.loop, lambda each: self.on(each, Event.RESTED))
        self.log_starts = LogStartSync(services.tasks, report, self._begin_anew)
        self.on_cut_over: Callable[[FollowedPartition], None] | None = None
        """A cut has ended: a frame that waited for it goes on."""
        self._services = services
        self._schedule = schedule
        self._report = report
        self._link: LeaderConnection | None = None
        self._wanted: dict[FollowedPartition, None] = {}
        self._handles = 0

    def begin(self, link: LeaderConnection) -> None:
        """A connection is ready."""
        self._link = link
        self._handles = 0

    def end(self) -> None:
        """It has ended."""
        self._link = None
        followings = list(self.by_handle.values())
        self.by_handle.clear()
        self.throttle.clear()
        for following in followings:
            self.on(following, Event.LOST)

    def want(self, following: FollowedPartition) -> None:
        """Subscribe as soon as the connection takes it and the partition may."""
        self._wanted[following] = None
        self._schedule()

    def remove(self, following: FollowedPartition) -> None:
        """Follow it no more."""
        self._wanted.pop(following, None)
        self.throttle.forget(following)
        self.on(following, Event.LEFT)

    def send(self, link: LeaderConnection) -> None:
        """Send the subscriptions that are wanted and may be sent."""
        rows = []
        for following in list(self._wanted):
            del self._wanted[following]
            # Who may not is asked again when its log is cut, its rest over, or its turn come.
            if not following.may_ask or not self.throttle.may_ask(following):
                continue
            self.on(following, Event.ASKED)
            self._handles += 1
            following.handle = self._handles
            self.by_handle[self._handles] = following
            rows.append(following.subscription())
            if len(rows) == SUBSCRIBE_ROWS_MAX:
                self._schedule()
                break
        if rows:
            link.send(protocol.encode_subscribe(rows))

    def on(self, following: FollowedPartition, event: Event, cut: Cut | None = None) -> None:
        """Do what an event asks for; `cut` is the work when that is a cut."""
        handle = following.handle
        for effect in following.on(event):
            if effect is Effect.UNSUBSCRIBE:
                self._unsubscribe(handle)
            elif effect is Effect.STOP_RESTING:
                following.stop_resting()
            elif effect is Effect.WAIT_LONGER:
                following.hold_s *= 2
            elif effect is Effect.REST:
                self.backoff.rest(following)
            elif effect is Effect.REST_AFTER_APPEND:
                self.backoff.rest_after_append(following)
            elif effect is Effect.SUBSCRIBE:
                self.want(following)
            else:
                assert effect is Effect.CUT and cut is not None
                self._spawn_cut(following, cut)

    def drop(self, handle: int) -> FollowedPartition | None:
        """Forget a handle that the leader has ended, or is about to; return whose it was."""
        following = self.by_handle.pop(handle, None)
        if following is not None:
            self.throttle.forget(following)
        return following

    def _unsubscribe(self, handle: int) -> None:
        if self.drop(handle) is not None and self._link is not None:
            self._link.send(protocol.encode_unsubscribe((handle,)))

    def _go_on(self, following: FollowedPartition) -> None:
        """The throttle lets it ask for more."""
        if following.is_subscribed:
            following.ceiling = None
            self._report(following)
        else:
            self.want(following)

    def _begin_anew(self, following: FollowedPartition) -> None:
        """Drop all of a log: what its leader has is fetched again."""
        start = Offset(following.leader_start)
        cut = partial(self._services.cutter.start_at, following.partition, start)
        self.on(following, Event.BEHIND, cut)

    def _spawn_cut(self, following: FollowedPartition, cut: Cut) -> None:
        # From now on, not from when the work begins: nobody may lead or be followed meanwhile.
        following.partition.is_cutting = True
        self._services.tasks.spawn("cut follower's log", self._cut(following, cut))

    async def _cut(self, following: FollowedPartition, cut: Cut) -> None:
        event = Event.CUT
        self._services.counters.truncations_total += 1
        try:
            await cut()
            # What was cut is written, so its disk does not hang.
            self.backoff.hanging.discard(following.partition.log.services.memory)
        except (WireError, OSError) as error:
            event = Event.CUT_FAILED
            log.warning(
                "Could not truncate log partition=%s error=%s",
                following.partition.topic_partition,
                error,
            )
        finally:
            self._services.on_cut(following)
        self.on(following, event)
        if self.on_cut_over is not None:
            self.on_cut_over(following)
