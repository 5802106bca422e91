"""Maintenance lock while a command works: taken, renewed in waits of any length, released.

The renewal runs on a thread of its own, because some waits block: a unit that stops, a shell of
another host. It does not judge progress: a wait with a patience ends when nothing moves any more,
and one without is ended by its operator.
"""

import getpass
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from uuid import UUID, uuid4

from dlog.client.blocking import BlockingClient
from dlog.client.cluster.maintenance_lock import LIFETIME_S
from dlog.errors import (
    DlogError,
    InvalidConfigError,
    InvalidRequestError,
    PolicyViolationError,
    UnsupportedVersionError,
)
from dlogctl.cluster.maintenance import (
    LIFETIME_S_MAX,
    OWNER_LENGTH_MAX,
    HeldByOthersError,
    held_back,
)
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import Settings

RENEWAL_S = 20.0


def owner_of(work: str) -> str:
    """Return a line for people: what is done, by whom, from which host."""
    user = os.environ.get("SUDO_USER") or getpass.getuser()
    return f"{work} by {user}@{socket.gethostname()}"[:OWNER_LENGTH_MAX]


class Hold:
    """The lock in the hands of one command. The thread of `renewed` and its owner call `renew`."""

    def __init__(self, token: UUID, owner: str | None = None, node_id: int | None = None) -> None:
        self.token = token
        self._owner = owner
        self._node_id = node_id

    async def renew(self, client: BlockingClient) -> None:
        """Take the lock or renew it, never for less than is left of it.

        A lock that is free stays free if no owner is known. Raises HeldByOthersError.
        """
        lock = await client.admin.describe_maintenance()
        owner, node_id, lifetime_s = self._owner, self._node_id, LIFETIME_S
        if lock is not None:
            # Of the holder who gave the token; if it is another one, the cluster refuses.
            owner, node_id = lock.owner, lock.node
            left_s = lock.expires_ms / 1000 - time.time()
            lifetime_s = min(max(LIFETIME_S, left_s), LIFETIME_S_MAX)
        if owner is None:
            return
        with held_back():
            await client.admin.hold_maintenance(owner, self.token, node_id, lifetime_s)


def renewed(settings: Settings, token: UUID | None) -> AbstractContextManager[None]:
    """Renew the lock that is held with a token, while the block runs; without one do nothing."""
    return _renewed(settings, None if token is None else Hold(token))


@contextmanager
def _renewed(settings: Settings, hold: Hold | None) -> Iterator[None]:
    if hold is None:
        yield
        return
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(RENEWAL_S):
            try:
                with connected(settings) as client:
                    client.run(lambda: hold.renew(client))
            except HeldByOthersError as error:
                say(f"the maintenance lock is lost: {error}", err=True)
                return
            except (DlogError, OSError):
                continue  # it does not answer now: the lock is held for longer than until next time

    thread = threading.Thread(target=keep, name="dlogctl-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def holding(
    settings: Settings, client: BlockingClient, work: str, node_id: int, token: UUID | None
) -> Iterator[Hold | None]:
    """Hold the lock while the block runs: the one of `token`, or one that ends with the block.

    Gives None where the cluster has no lock, and that was said. Raises HeldByOthersError.
    """
    hold = Hold(token or uuid4(), owner_of(work), node_id)
    held: Hold | None = hold
    try:
        try:
            client.run(lambda: hold.renew(client))
        except (InvalidConfigError, InvalidRequestError, UnsupportedVersionError) as error:
            say(f"no maintenance lock keeps others out: {error}", err=True)
            held = None
        with _renewed(settings, held):
            yield held
    finally:
        # Also where the answer to the first request was not waited for.
        if token is None:
            _release(client, hold.token)


def _release(client: BlockingClient, token: UUID) -> None:
    try:
        with suppress(PolicyViolationError, InvalidConfigError, InvalidRequestError):
            client.run(lambda: client.admin.release_maintenance(token))
    except (DlogError, OSError) as error:
        say(
            f"the maintenance lock is not released, {error}; it expires within {LIFETIME_S:g} s,"
            " or end it: dlogctl maintenance release --force",
            err=True,
        )
