"""Lock and identity check of all data directories, the first step of a start.

Called by `dlogd.storage.log_manager` before anything else touches the directories, the metadata
included. A directory that does not work is left out; a contradiction ends the start.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from dlog.errors import ConfigError
from dlog.types import NodeId
from dlogd.runtime.randomness import Entropy
from dlogd.storage.directory.data_directory import TOPICS, Claim, agreed_cluster
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.io.checkpoint_files import Identity
from dlogd.storage.io.errnos import OF_THE_PROCESS
from dlogd.storage.io.io_engine import Engine

log = logging.getLogger(__name__)

OnError = Callable[[LogDirectory, OSError], None]


class DirectoryLock:
    """The claim of one node on its data directories: `lock`, then `adopt` or `release`."""

    def __init__(
        self,
        homes: Sequence[LogDirectory],
        engine: Engine,
        entropy: Entropy,
        *,
        direct_required: bool,
        on_error: OnError,
    ) -> None:
        """`on_error` takes a directory out of service."""
        self._homes = homes
        self._engine = engine
        self._entropy = entropy
        self._direct_required = direct_required
        self._on_error = on_error
        self._outcomes: Sequence[Claim | ConfigError | None] = ()

    async def lock(self) -> None:
        """Lock all directories that work, before anything in them is read or changed.

        Raises ConfigError: in use by another process, damaged, or none works.
        """
        self._outcomes = await asyncio.gather(*(self._claim(home) for home in self._homes))
        refusals = [outcome for outcome in self._outcomes if isinstance(outcome, ConfigError)]
        if refusals:
            problems = [text for error in refusals for text in error.problems]
            # The cause of the first tells whether trying again makes sense.
            raise ConfigError(problems) from refusals[0]
        if not any(self._outcomes):
            raise ConfigError(
                [
                    f"Data directory {home.path} does not work: {home.failure}"
                    for home in self._homes
                ]
            )

    async def release(self) -> None:
        """Unlock what was locked: this daemon must not run on it."""
        for home in self._homes:
            await self._engine.run(home.directory.release)

    async def adopt(self, node_id: NodeId, cluster_id: str | None, *, has_metadata: bool) -> str:
        """Make the locked directories this node's; return the cluster's id, perhaps a new one.

        Raises ConfigError with every contradiction between directories and configuration.
        """
        claims = [
            (home, outcome)
            for home, outcome in zip(self._homes, self._outcomes, strict=True)
            if isinstance(outcome, Claim)
        ]
        if not has_metadata:
            _expect_no_logs([claim for _, claim in claims])
        agreed = agreed_cluster([claim for _, claim in claims], node_id, cluster_id)
        agreed = agreed or self._new_cluster_id()
        for home, claim in claims:
            await self._adopt(home, claim, agreed, node_id)
        return agreed

    async def _claim(self, home: LogDirectory) -> Claim | ConfigError | None:
        claim = partial(home.directory.claim, direct_required=self._direct_required)
        try:
            return await self._engine.run(claim)
        except ConfigError as error:
            return error
        except OSError as error:
            self._blame(home, error)
            return None

    async def _adopt(
        self, home: LogDirectory, claim: Claim, cluster_id: str, node_id: NodeId
    ) -> None:
        identity = claim.identity
        if identity is None:
            identity = Identity(
                cluster_id=cluster_id, node_id=node_id, directory_id=self._new_uuid()
            )
            log.info("Adopted a new data directory path=%s id=%s", home.path, identity.directory_id)
        home.directory_id = identity.directory_id
        adopt = partial(home.directory.adopt, identity, is_new=claim.identity is None)
        try:
            await self._engine.run(adopt)
        except OSError as error:
            self._blame(home, error)

    def _blame(self, home: LogDirectory, error: OSError) -> None:
        """Go on without a directory that does not work; re-raise what is not its fault."""
        if error.errno in OF_THE_PROCESS:
            # Until the next start its partitions would be missed for nothing: better start again.
            raise error
        self._on_error(home, error)

    def _new_uuid(self) -> UUID:
        return self._entropy.uuid()

    def _new_cluster_id(self) -> str:
        """Return an id in Kafka's form: 16 random bytes in base64, 22 characters."""
        return base64.urlsafe_b64encode(self._new_uuid().bytes).decode().rstrip("=")


def _expect_no_logs(claims: Sequence[Claim]) -> None:
    """Raise ConfigError where logs are without the metadata that says whose they are."""
    problems = [
        f"{claim.path} holds logs of node {claim.identity.node_id}, but there is no metadata:"
        " correct metadata.directory, or restore its files; to begin again, move"
        f" {claim.path}/{TOPICS} away"
        for claim in claims
        if claim.has_logs and claim.identity is not None
    ]
    if problems:
        raise ConfigError(problems)
