"""Calls about the maintenance lock: one operation on a cluster at a time.

Part of `dlog.client.admin`. A holder chooses a token, renews the lock before it expires, and gives
the token to the calls that the lock holds back for all others.
"""

import json
from typing import Any
from uuid import UUID

from dlog.client.admin_views import MaintenanceLock, Resource
from dlog.client.cluster.admin_session import TIMEOUT_MS, AdminSession, only, timeout_s, values_of
from dlog.client.cluster.node import NodeClient, raise_for
from dlog.errors import ProtocolError
from dlog.wire.apis import ApiKey

LIFETIME_S = 600.0
_LOCK, _TOKEN = "maintenance.lock", "maintenance.token"
_SET, _DELETE = 0, 1

Operation = tuple[str, int, str | None]
"""A setting, what to do with it, its value."""


class MaintenanceAdmin(AdminSession):
    """The calls about the lock, and what settings of nodes need for it."""

    async def hold_maintenance(
        self, owner: str, token: UUID, node_id: int | None = None, lifetime_s: float = LIFETIME_S
    ) -> MaintenanceLock:
        """Take the lock, or renew it with the same token; return it as the cluster has it.

        Raises PolicyViolationError, which says who is at it, while another operator holds it.
        `owner` is a line for people: what is done, by whom. `lifetime_s` is at most an hour.
        """
        wanted = {
            "owner": owner,
            "token": str(token),
            "node": node_id,
            "lifetime_ms": int(lifetime_s * 1000),
        }

        async def operation(node: NodeClient) -> MaintenanceLock:
            await _alter(node, "", [(_LOCK, _SET, json.dumps(wanted))])
            # The image of the node that was asked shows what it proposed.
            found = await _present(node)
            if found is None:
                raise ProtocolError(f"the response lacks {_LOCK}")
            return found

        return await self._cluster.run(self._cluster.controller, operation, idempotent=True)

    async def release_maintenance(self, token: UUID | None) -> None:
        """End the lock that is held with a token; None ends the lock of any holder.

        Nothing happens when it is free. Raises PolicyViolationError when it is another's.
        """
        await self._settings("", [(_LOCK, _DELETE, None if token is None else str(token))])

    async def describe_maintenance(self) -> MaintenanceLock | None:
        """Return who works on the cluster, None when the lock is free or has expired."""
        return await self._cluster.run(self._cluster.any_node, _present)

    async def _settings(
        self, name: str, operations: list[Operation], token: UUID | None = None
    ) -> None:
        """Change settings of a node or of the cluster; doing it twice is doing it."""
        if token is not None:
            operations = [*operations, (_TOKEN, _SET, str(token))]
        await self._cluster.run(
            self._cluster.controller,
            lambda node: _alter(node, name, operations),
            idempotent=True,
        )


async def _alter(node: NodeClient, name: str, operations: list[Operation]) -> None:
    def build(module: Any) -> Any:
        changes = tuple(
            module.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        )
        wanted = module.AlterConfigsResource(
            resource_type=int(Resource.BROKER), resource_name=name, configs=changes
        )
        return module.IncrementalAlterConfigsRequest(resources=(wanted,), validate_only=False)

    response = await node.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, build, timeout_s(TIMEOUT_MS))
    result = only(response.responses, operations[0][0])
    raise_for(int(result.error_code), result.error_message)


async def _present(node: NodeClient) -> MaintenanceLock | None:
    found = await values_of(node, Resource.BROKER, [""], [_LOCK])
    text = found.get("", {}).get(_LOCK)
    if text is None:
        return None
    try:
        facts = json.loads(text)
        return MaintenanceLock(
            owner=str(facts["owner"]),
            node=facts["node"],
            since_ms=int(facts["since_ms"]),
            expires_ms=int(facts["expires_ms"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"{_LOCK} cannot be read: {error}") from None
