"""Steps of the machine for the maintenance lock, and what the lock holds back.

Pure. The lock is judged here and not where commands are proposed: any node proposes, from an image
that may be older than the lock. Time is that of the proposers, so it is the same on all nodes.
"""

from datetime import datetime, timedelta

from dlog.errors import InvalidRequestError, PolicyViolationError
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import HoldMaintenance, Permit, ReleaseMaintenance
from dlogd.metadata.machine.image_changes import Step
from dlogd.metadata.state.image import ClusterImage, MaintenanceLock
from dlogd.metadata.state.limits import (
    INT31_MAX,
    MAINTENANCE_LIFETIME_MS_MAX,
    MAINTENANCE_OWNER_LENGTH_MAX,
    TIMESTAMP_MS_MAX,
)

_EPOCH = datetime(1970, 1, 1)
_NEVER_EXPIRED = Permit(token=None, now_ms=-1)


def hold_maintenance(image: ClusterImage, command: HoldMaintenance) -> Step:
    """Take or renew the lock; the value is since when it is held."""
    _check_hold(command)
    held, now_ms = image.maintenance_at(command.now_ms), command.now_ms
    since_ms = now_ms
    if held is not None:
        if held.token != command.token:
            raise PolicyViolationError(f"{_sentence(held)} Wait for that, or end it: {_FORCE}")
        since_ms = held.since_ms
    lock = MaintenanceLock(
        owner=command.owner,
        token=command.token,
        node_id=command.node_id,
        since_ms=since_ms,
        expires_ms=now_ms + command.lifetime_ms,
    )
    return image.having(maintenance=lock), since_ms


def _check_hold(command: HoldMaintenance) -> None:
    if not 1 <= len(command.owner) <= MAINTENANCE_OWNER_LENGTH_MAX:
        raise InvalidRequestError(
            f"The owner of a maintenance lock has 1 to {MAINTENANCE_OWNER_LENGTH_MAX} letters,"
            f" not {len(command.owner)}"
        )
    if not 1 <= command.lifetime_ms <= MAINTENANCE_LIFETIME_MS_MAX:
        raise InvalidRequestError(
            f"A maintenance lock is held for 1 to {MAINTENANCE_LIFETIME_MS_MAX} ms,"
            f" not {command.lifetime_ms}"
        )
    if not NO_NODE <= command.node_id <= INT31_MAX:
        raise InvalidRequestError(f"Node id {command.node_id} is negative")
    if not 0 <= command.now_ms <= TIMESTAMP_MS_MAX:
        raise InvalidRequestError(f"{command.now_ms} is no time of a clock")


def release_maintenance(image: ClusterImage, command: ReleaseMaintenance) -> Step:
    """End the lock; a lock that is free already stays free."""
    held = image.maintenance
    if held is not None and command.token not in (None, held.token):
        raise PolicyViolationError(f"{_sentence(held)} The token is another one; {_FORCE}")
    return image.having(maintenance=None), 0


def expect_permitted(image: ClusterImage, permit: Permit | None) -> None:
    """Raise while another operator holds the lock.

    A command without a permit comes from a node that did not know the level yet: it is refused as
    long as there is a lock.
    """
    permit = permit or _NEVER_EXPIRED
    held = image.maintenance_at(permit.now_ms)
    if held is not None and permit.token != held.token:
        raise PolicyViolationError(
            f"{_sentence(held)} Wait for that, give its token (--maintenance-token),"
            f" or end it: {_FORCE}"
        )


_FORCE = "dlogctl maintenance release --force"


def _sentence(lock: MaintenanceLock) -> str:
    """Say who is at it, since when, and when it ends; at most 350 letters."""
    return (
        f"The cluster is held for maintenance by {lock.owner}{_at(lock.node_id)} since"
        f" {_format(lock.since_ms)}, until {_format(lock.expires_ms)} unless renewed."
    )


def _at(node_id: NodeId) -> str:
    return "" if node_id == NO_NODE else f" (node {node_id})"


def _format(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="seconds") + "Z"
