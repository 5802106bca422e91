"""Deletion of replicas that the image no longer places on this node.

A disk that hangs keeps what is to be deleted there for as long as `disk.timeout`. Whoever deletes
waits for it only a moment: other disks have replicas to open meanwhile. Owner:
`replication.replica_manager`, on the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dlog.errors import WireError
from dlogd.metadata.state.image import TopicImage
from dlogd.replication.placement_diff import Key
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

COUNT_MAX = 64
"""So many are deleted at a time."""
MOMENT_S = 1.0
"""For so long deletions are waited for."""


class ReplicaDeletion:
    """What is to be deleted, and what is being deleted: no replica is in both."""

    def __init__(
        self,
        delete: Callable[[TopicImage, int], Coroutine[Any, Any, None]],
        tasks: Tasks,
        on_failed: Callable[[], None],
    ) -> None:
        """`delete` may raise WireError, OSError; `on_failed` is told when nobody waits any more."""
        self.undeleted: dict[Key, TopicImage] = {}
        """To be tried again."""
        self._delete = delete
        self._tasks = tasks
        self._on_failed = on_failed
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._told: set[Key] = set()  # whose failure was logged
        self._is_awaited = False

    async def carry_out(self, gone: Mapping[Key, TopicImage]) -> None:
        """Delete these and nothing else; return when that is done, or takes too long.

        What has begun then goes on by itself; what has not, or has failed, is `undeleted`.
        """
        self.undeleted = {key: topic for key, topic in gone.items() if key not in self._running}
        self._told &= self.undeleted.keys() | self._running.keys()
        waiting, late = list(self.undeleted), False
        self._is_awaited = True
        while waiting and not late and len(self._running) < COUNT_MAX:
            count = COUNT_MAX - len(self._running)
            begun = [self._begin(key) for key in waiting[:count]]
            del waiting[:count]
            late = bool((await asyncio.wait(begun, timeout=MOMENT_S))[1])
        self._is_awaited = False

    async def settle(self, key: Key) -> None:
        """Return when a replica is not being deleted, or not any more."""
        if (running := self._running.get(key)) is not None:
            await asyncio.wait([running])

    def _begin(self, key: Key) -> asyncio.Task[None]:
        work = self._do(key, self.undeleted.pop(key))
        self._running[key] = self._tasks.spawn("delete replica", work, is_vital=True)
        return self._running[key]

    async def _do(self, key: Key, topic: TopicImage) -> None:
        try:
            await self._delete(topic, key[1])
        except (WireError, OSError) as error:
            self.undeleted[key] = topic
            if key not in self._told:
                self._told.add(key)
                name = topic.topic_partition(key[1])
                log.error("Could not delete log, trying again partition=%s error=%s", name, error)
            if not self._is_awaited:
                self._on_failed()
        finally:
            del self._running[key]
