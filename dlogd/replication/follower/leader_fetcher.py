"""Fetcher of all partitions that follow one leader, over one connection.

The follower pulls: it says where it stands, the leader sends what comes after, and the leader
counts only what this follower says it has promised. Nothing here waits for another leader (rule
L3), and no failure is tried again without a rest (rule L4).
Owner: the event loop's thread; made by `dlogd.replication.follower.fetcher_manager`.
"""

import asyncio
import logging
import math

from dlog.errors import DlogError, ProtocolError
from dlog.types import NodeId
from dlogd.replication import protocol
from dlogd.replication.follower.fetch_services import FetchServices
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.frame_applier import FrameApplier
from dlogd.replication.follower.leader_connection import LeaderConnection
from dlogd.replication.follower.subscriptions import Subscriptions

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
CONNECT_PATIENCE_S = 0.25
"""An attempt that has taken longer is given up for a new one when the leader may have come back."""
PING_S = 1.0
SILENCE_S_MAX = 6.0
"""A leader that says nothing for so long, although it is asked, is connected to anew."""
REST_S_MIN = 0.05
REST_S_MAX = 1.0
IDLE_PINGS_MAX = 10
TAKEN_BYTES_MAX = 1 << 20
"""After so many bytes the leader is told of frames that were taken, promised or not."""


class LeaderFetcher:
    """Follows one leader. Life: `run` as a task, until it is cancelled."""

    def __init__(self, leader_id: NodeId, services: FetchServices) -> None:
        self.leader_id = leader_id
        self.followings: dict[FollowedPartition, None] = {}
        self._services = services
        self._counters = services.counters
        self._loop = services.loop
        self._link: LeaderConnection | None = None
        self._wanted = asyncio.Event()
        self._nudge = asyncio.Event()
        self._subscriptions = Subscriptions(services, self._schedule, self.report)
        self._applier = FrameApplier(
            leader_id, services, self._subscriptions, self.report, self._on_taken
        )
        self._reports: dict[FollowedPartition, None] = {}
        self._is_scheduled = False
        self._taken = 0  # DATA frames on this connection
        self._taken_bytes = 0  # since the leader was told
        self._is_telling = False  # it is to be told of them, whether there is progress or not
        self._idle_pings = 0
        self._rest_s = REST_S_MIN
        self._said = ""
        self._attempt: asyncio.Timeout | None = None
        self._attempt_s = 0.0  # when it began
        # When the connection to the leader ended that is not there any more; the loop's time.
        self.lost_s = -math.inf

    @property
    def is_connected(self) -> bool:
        """Whether the leader is being listened to."""
        return self._link is not None and self._link.ready.done()

    # -- partitions

    def add(self, following: FollowedPartition) -> None:
        """Follow a partition from now on."""
        self.followings[following] = None
        following.partition.reporter = following
        self.subscribe(following)
        self._wanted.set()
        self._hurry()

    def remove(self, following: FollowedPartition) -> None:
        """Follow it no more."""
        self.followings.pop(following, None)
        self._reports.pop(following, None)
        self._subscriptions.remove(following)
        if following.partition.reporter is following:
            following.partition.reporter = None
        if not self.followings:
            self._wanted.clear()

    def nudge(self) -> None:
        """The image has changed: the leader may be reached by now."""
        self._rest_s = REST_S_MIN
        self._nudge.set()
        self._hurry()

    def _hurry(self) -> None:
        """Connect anew where nobody has answered for long.

        A host without power answers nothing: not even when it is back, for as long as the kernel
        waits until it asks again, a second and more.
        """
        attempt, now_s = self._attempt, self._loop.time()
        if attempt is None or attempt.expired():
            return
        if now_s - self._attempt_s > CONNECT_PATIENCE_S:
            self._attempt, self._rest_s = None, REST_S_MIN
            attempt.reschedule(now_s)

    def subscribe(self, following: FollowedPartition) -> None:
        """Tell the leader where a partition stands; it answers with what follows."""
        self._subscriptions.want(following)

    def report(self, following: FollowedPartition) -> None:
        """Tell the leader how far a partition is."""
        self._reports[following] = None
        self._schedule()

    def _on_taken(self, size: int, is_in_vain: bool) -> None:
        """Note that a DATA frame was taken; the leader sends on when it hears of it."""
        self._taken += 1
        self._taken_bytes += size
        if is_in_vain or self._taken_bytes >= TAKEN_BYTES_MAX:
            self._is_telling = True
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._link is not None:
            self._is_scheduled = True
            self._services.defer(self._send)

    def _send(self) -> None:
        """Send what there is to say, unless the leader takes nothing now."""
        self._is_scheduled = False
        link = self._link
        if link is None or not link.may_send or not link.ready.done():
            return
        self._subscriptions.send(link)
        if self._reports or self._is_telling:
            rows = [row for each in self._reports if (row := each.progress()) is not None]
            self._reports.clear()
            self._send_progress(link, rows)

    def _send_progress(self, link: LeaderConnection, rows: list[protocol.Progress]) -> None:
        self._taken_bytes, self._is_telling = 0, False
        link.send(protocol.encode_progress(self._taken, rows))

    # -- the connection

    async def run(self) -> None:
        """Connect, follow, and connect again, for ever."""
        while True:
            await self._wanted.wait()
            failure = await self._connect_and_follow()
            if failure is None:
                continue  # nobody followed this leader any more
            self._counters.failures_total += 1
            said = f"{type(failure).__name__}: {failure}"
            if said != self._said:
                self._said = said
                log.info("Could not follow leader=%d error=%s", self.leader_id, said)
            await self._rest()

    async def _rest(self) -> None:
        jitter = self._services.rng.uniform(0.5, 1.0)
        rest_s, self._rest_s = self._rest_s * jitter, min(self._rest_s * 2, REST_S_MAX)
        self._nudge.clear()
        try:
            async with asyncio.timeout(rest_s):
                await self._nudge.wait()
        except TimeoutError:
            pass

    async def _connect_and_follow(self) -> Exception | None:
        """Follow until the connection ends; return why, None when nobody was to be followed."""
        services = self._services
        address = services.address(self.leader_id)
        if address is None:
            return ProtocolError(f"no node knows the address of node {self.leader_id} is")
        self._counters.connects_total += 1
        introduction = services.introduce(self.leader_id)
        link = LeaderConnection(self._loop, services.memory, introduction, self._applier.take)
        link.on_writable = self._schedule
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S) as attempt:
                self._attempt, self._attempt_s = attempt, self._loop.time()
                try:
                    await self._loop.create_connection(lambda: link, address.host, address.port)
                finally:
                    self._attempt = None  # the host answers: no need to hurry
                await asyncio.shield(link.ready)
        except (OSError, ValueError, DlogError) as error:  # ValueError: of a strange host name
            link.close(error)
            _look_at(link)
            return error
        self._begin(link)
        began_s = self._loop.time()
        ping = self._loop.call_later(PING_S, self._ping, link)
        try:
            return await asyncio.shield(link.closed)
        finally:
            ping.cancel()
            self._end(link)
            if self._loop.time() - began_s > REST_S_MAX:
                # It held: what comes now is another trouble. One that breaks at once rests longer.
                self._said = ""
                self._rest_s = REST_S_MIN

    def _begin(self, link: LeaderConnection) -> None:
        self._link = link
        self.lost_s = -math.inf
        self._taken = self._taken_bytes = self._idle_pings = 0
        self._is_scheduled = self._is_telling = False
        self._subscriptions.begin(link)
        self._applier.begin(link)
        for following in self.followings:
            self.subscribe(following)
        self._schedule()

    def _end(self, link: LeaderConnection) -> None:
        self._link = None
        self.lost_s = self._loop.time()
        link.close()
        _look_at(link)
        self._applier.end()
        self._subscriptions.end()
        self._reports.clear()

    def _ping(self, link: LeaderConnection) -> None:
        if link is not self._link:
            return
        now_s = self._loop.time()
        self._idle_pings = 0 if self.followings else self._idle_pings + 1
        if self._idle_pings > IDLE_PINGS_MAX:
            link.close(None)
            return
        if now_s - link.heard_s > SILENCE_S_MAX and not link.is_held:
            link.close(TimeoutError(f"node {self.leader_id} is silent"))
            return
        if link.may_send:
            self._send_progress(link, [])
        self._loop.call_later(PING_S, self._ping, link)


def _look_at(link: LeaderConnection) -> None:
    """Take note of why it was never ready, so that nobody complains that it was not looked at."""
    if link.ready.done() and not link.ready.cancelled():
        link.ready.exception()
