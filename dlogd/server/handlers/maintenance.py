"""Maintenance lock as a setting of the whole cluster, and the token that other settings carry.

`maintenance.lock` of the broker resource without a name is set to a JSON object: `owner`, `token`,
`node` (or null), `lifetime_ms`. Described, it has `owner`, `node`, `since_ms`, `expires_ms`, while
the lock is held; the token is told to no client. Its deletion releases: with the token as value, or
without a value that of any holder.

`maintenance.token` goes with `node.drain` and `node.registration` of a named broker. The state
machine judges it, not this node, whose image may be older than the lock
(docs/decisions/0048-maintenance-lock.md).
"""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from dlog.errors import InvalidConfigError, InvalidRequestError
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import HoldMaintenance, Permit, ReleaseMaintenance
from dlogd.metadata.machine.config_changes import AlterOperation
from dlogd.metadata.state.image import ClusterImage
from dlogd.metadata.state.limits import INT31_MAX, LEVEL_MAINTENANCE
from dlogd.server.context import ServerContext

LOCK = "maintenance.lock"
TOKEN = "maintenance.token"
TEXT_LENGTH_MAX = 4_096
"""Of a value that is set: an owner of 255 letters, each of them escaped, fits."""
EXAMPLE = '{"owner": "upgrade by ann", "token": "UUID", "node": 2, "lifetime_ms": 600000}'


def describe(context: ServerContext) -> str | None:
    """Return the value of the lock if it is held now, by the clock of this node."""
    lock = context.image().maintenance_at(context.clock.timestamp_ms())
    return None if lock is None else json.dumps(lock.facts, ensure_ascii=False)


def permit_of(context: ServerContext, token: UUID | None) -> Permit | None:
    """Return what a command carries that the lock may hold back; None where there is no lock."""
    if not _has_locks(context.image()):
        return None
    return Permit(token=token, now_ms=context.clock.timestamp_ms())


def token_of(operations: Sequence[Any]) -> UUID | None:
    """Return the token that goes with another setting; raise InvalidConfigError."""
    given = [each for each in operations if each.name == TOKEN]
    if not given:
        return None
    if len(given) > 1 or given[0].config_operation != AlterOperation.SET:
        raise InvalidConfigError(f"{TOKEN} is set, once, beside another setting of a node")
    return _parse_token(given[0].value)


async def alter(
    context: ServerContext, wanted: Any, deadline_ms: int, *, validate_only: bool
) -> None:
    """Hold or release the lock; raise WireError."""
    if context.quorum is None:
        raise InvalidRequestError("This node keeps its metadata alone: no other waits for a lock")
    level = context.image().feature_level
    if not _has_locks(context.image()):
        raise InvalidConfigError(
            f"{LOCK} needs feature level {LEVEL_MAINTENANCE}, the cluster is at {level}. When"
            f" every node runs a version that knows it: dlogctl config set"
            f" feature.level={LEVEL_MAINTENANCE}"
        )
    command: HoldMaintenance | ReleaseMaintenance
    if wanted.config_operation == AlterOperation.SET:
        command = _parse_hold(context, wanted.value or "")
    elif wanted.config_operation == AlterOperation.DELETE:
        token = _parse_token(wanted.value) if wanted.value else None
        command = ReleaseMaintenance(command_id=context.new_id(), token=token)
    else:
        raise InvalidConfigError(f"{LOCK} is set or deleted, nothing else")
    if validate_only:
        context.rehearse(command)
    else:
        await context.propose(command, deadline_ms)


def _has_locks(image: ClusterImage) -> bool:
    return image.feature_level >= LEVEL_MAINTENANCE


def _parse_hold(context: ServerContext, text: str) -> HoldMaintenance:
    try:
        if len(text) > TEXT_LENGTH_MAX:
            raise ValueError(f"{len(text)} letters are too many")
        fields = json.loads(text)
        owner, node = fields["owner"], fields.get("node")
        lifetime_ms = fields["lifetime_ms"]
        if not isinstance(owner, str) or not owner.isprintable():
            raise ValueError("owner is no line of text")
        numbers = [lifetime_ms, *([] if node is None else [node])]
        if any(type(each) is not int or not 0 <= each <= INT31_MAX for each in numbers):
            raise ValueError("node and lifetime_ms are numbers from 0 on")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidConfigError(
            f"Invalid value for configuration {LOCK} ({error}): set it as in {EXAMPLE}"
        ) from None
    return HoldMaintenance(
        command_id=context.new_id(),
        owner=owner,
        token=_parse_token(fields.get("token")),
        node_id=NO_NODE if node is None else NodeId(node),
        now_ms=context.clock.timestamp_ms(),
        lifetime_ms=lifetime_ms,
    )


def _parse_token(text: object) -> UUID:
    try:
        if not isinstance(text, str):
            raise ValueError
        return UUID(text)
    except ValueError:
        raise InvalidConfigError("The token of a maintenance lock is no UUID") from None
