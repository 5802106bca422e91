"""Sync of log starts: a follower deletes what its leader has deleted.

Part of `dlogd.replication.follower.subscriptions`. Only what is committed goes. A full disk takes
nothing until something goes, so nothing that could go waits for what is to be written first. Owner:
the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable

from dlog.errors import WireError
from dlog.types import Offset
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

TRIM_AGAIN_S = 1.0
FLUSH_S_MAX = 5.0
"""So long a trim waits for a flush, which may wait for space; then it looks again."""
TRIES_IN_VAIN = 3


class LogStartSync:
    """The log starts of one leader; `begin_anew` drops all that a log has."""

    def __init__(
        self,
        tasks: Tasks,
        report: Callable[[FollowedPartition], None],
        begin_anew: Callable[[FollowedPartition], None],
    ) -> None:
        self._tasks = tasks
        self._report = report
        self._begin_anew = begin_anew

    def on_log_start(self, following: FollowedPartition, log_start: int) -> None:
        """Follow the leader's log start, which may be said only once."""
        is_news = log_start > following.leader_start
        following.leader_start = log_start
        if log_start > following.partition.log.log_start_offset and not following.trimming:
            following.trimming = True
            self._tasks.spawn("trim follower", self._trim(following))
        elif is_news:
            self._report(following)  # this log begins there already

    async def _trim(self, following: FollowedPartition) -> None:
        """Trim as far as this log is committed, until it begins where the leader's does."""
        plog = following.partition.log
        tries = 0
        try:
            while following.is_current:
                target = Offset(min(following.leader_start, following.partition.high_watermark))
                before = plog.log_start_offset
                if target <= before:
                    break
                try:
                    await self._trim_to(following, target)
                except (WireError, OSError) as error:
                    log.info(
                        "Could not apply the leader's log start partition=%s offset=%d error=%s",
                        plog.topic_partition,
                        target,
                        error,
                    )
                    if plog.failed is not None:
                        break
                    tries = tries + 1 if plog.log_start_offset == before else 0
                    if tries >= TRIES_IN_VAIN and _may_begin_anew(following, target):
                        self._begin_anew(following)
                        break
                    await asyncio.sleep(TRIM_AGAIN_S)
        finally:
            following.trimming = False
        if following.is_current:
            self._report(following)

    async def _trim_to(self, following: FollowedPartition, target: Offset) -> None:
        """Trim; raise WireError or OSError when that has to wait, although a part has gone."""
        plog = following.partition.log
        if target > plog.flushed_offset:
            await plog.trim_to(plog.flushed_offset)
            plog.check_shortage()
            async with asyncio.timeout(FLUSH_S_MAX):  # its error is an OSError
                await plog.flush()
        await plog.trim_to(target)


def _may_begin_anew(following: FollowedPartition, target: Offset) -> bool:
    """Whether a log that waits for space holds nothing that anybody counts on.

    The space may be that of its active segment, whose end is in memory only and cannot be written.
    What is in sync, or may be elected, has promised all below its leader's watermark, and the
    leader's log begins below that. So who has not promised up to that beginning is neither; it may
    as well have crashed, and would begin anew then.
    """
    partition = following.partition
    plog = partition.log
    return plog.blocked is not None and target > plog.promised_offset and not partition.is_cutting
