"""File of the node epoch in each data directory: which incarnation used it last.

Owner: the event loop's thread; made by `dlogd.storage.log_manager`. docs/formats/small-files.md.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.io.checkpoint_files import Incarnation
from dlogd.storage.io.io_engine import Engine

log = logging.getLogger(__name__)


class NodeEpochFile:
    """The notes of all directories in service; one that cannot be written is left out.

    The next start has no proof for what is there then, which is safe.
    """

    def __init__(
        self,
        homes: Sequence[LogDirectory],
        engine: Engine,
        on_error: Callable[[LogDirectory, OSError], None],
    ) -> None:
        self._homes = homes
        self._engine = engine
        self._on_error = on_error

    async def note_registering(
        self, command_id: UUID, epoch_of: Callable[[Incarnation], int | None]
    ) -> None:
        """Note a registration that is about to be proposed: a crash may come before its answer.

        `epoch_of` says which life an earlier note stands for: a start that was cut off may have
        registered, too.
        """
        await asyncio.gather(
            *(
                self._save(
                    home, Incarnation(node_epoch=epoch_of(home.life), registering=command_id)
                )
                for home in self._homes
            )
        )

    def ignorant_of(self, command_id: UUID) -> tuple[UUID, ...]:
        """Return the directories in service that could not note a registration: full disks."""
        return tuple(
            home.directory_id
            for home in self._homes
            if home.failure is None and home.life.registering != command_id
        )

    async def begin(self, node_epoch: int | None) -> None:
        """Use the directories from now on, as a life of a node in a cluster or as a node alone."""
        await asyncio.gather(*(self._begin(home, node_epoch) for home in self._homes))

    async def _begin(self, home: LogDirectory, node_epoch: int | None) -> None:
        if node_epoch is not None and not await self._save(
            home, Incarnation(node_epoch=node_epoch)
        ):
            return
        strict = [key for key in home.weak if key in home.logs and home.logs[key].config.durable]
        for key in strict:
            forget = partial(home.directory.forget_weak, home.names[key])
            if not await self._attempt(home, forget):
                return
        home.confirmed = True

    async def _save(self, home: LogDirectory, life: Incarnation) -> bool:
        done = await self._attempt(home, partial(home.directory.save_life, life))
        if done:
            home.life = life
        return done

    async def _attempt(self, home: LogDirectory, work: Callable[[], None]) -> bool:
        if home.failure is not None:
            return False
        try:
            await self._engine.run(work)
        except OSError as error:
            log.warning(
                "Could not write the node epoch to a data directory path=%s error=%s",
                home.path,
                error,
            )
            self._on_error(home, error)
            return False
        return True
