"""Removal of stray logs that a start has set aside.

A stray is a log whose topic was deleted, or whose replica went to other nodes, while its node was
down. It is kept for `stray.retention` of this process's life, so that a mistake can be mended.
Nothing else in `stray/` is touched. Part of the composition: `dlogd.node.startup` makes one. Owner:
the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from dlog.types import NodeId
from dlogd.metadata.state.image import ClusterImage
from dlogd.runtime.tasks import Tasks
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.directory.log_names import LogKey

log = logging.getLogger(__name__)

LOOK_MS_MAX = 3_600_000
LOOKS = 4
"""Looks within one retention, so that a stray stays little longer than that."""


def why_not_needed(image: ClusterImage, node_id: NodeId, key: LogKey) -> str | None:
    """Say why nobody needs this node's copy of a log, None when somebody might. Pure.

    The image must be as new as the start of this process: a topic id that was known once and is not
    in it was deleted, and comes never back.
    """
    topic_id, number = key
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return "its topic was deleted"
    if number >= len(topic.partitions):
        return None
    partition = topic.partitions[number]
    if node_id in partition.replicas or partition.adding or partition.removing:
        return None
    return "its replicas are on other nodes" if partition.has_leader else None


class StrayRemoval:
    """Looks and deletes. Life: `start`; it ends with its tasks."""

    def __init__(
        self,
        homes: Sequence[LogDirectory],
        retention_ms: int,
        node_id: NodeId,
        image: Callable[[], ClusterImage],
    ) -> None:
        self._homes = homes
        self._retention_ms = retention_ms
        self._node_id = node_id
        self._image = image
        self._seen_ms: dict[tuple[str, str], int] = {}

    def start(self, tasks: Tasks) -> None:
        """Look from now on; never, when strays are kept for ever."""
        if self._retention_ms >= 0:
            tasks.spawn("delete strays", self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(min(self._retention_ms // LOOKS, LOOK_MS_MAX) / 1000)
            for home in self._homes:
                if home.failure is None:
                    await self._look(home)

    async def _look(self, home: LogDirectory) -> None:
        services = home.services
        now_ms = services.clock.now_ms()
        try:
            strays = await services.engine.run(home.directory.strays.logs)
            for name, key in strays.items():
                since_ms = self._seen_ms.setdefault((home.path, name), now_ms)
                why = why_not_needed(self._image(), self._node_id, key)
                if why is None or now_ms - since_ms < self._retention_ms:
                    continue
                await services.engine.run(partial(home.directory.strays.remove, name))
                log.info("Deleted a stray log path=%s/stray/%s reason=%r", home.path, name, why)
        except OSError as error:
            log.warning("Could not delete stray logs path=%s/stray error=%s", home.path, error)
