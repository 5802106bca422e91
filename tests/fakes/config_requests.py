"""Requests about configs to a node in memory, and the numbers in them."""

from typing import Any

from dlog.wire.apis import ApiKey
from tests.fakes.server import FakeNode

TOPIC, BROKER, LOGGER = 2, 4, 8
"""Types of resources."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations of IncrementalAlterConfigs."""
TOPIC_SOURCE, CLUSTER_SOURCE, FILE_SOURCE, DEFAULT_SOURCE = 1, 3, 4, 5
"""Where a value comes from."""


async def describe(
    node: FakeNode, resource_type: int, name: str, *keys: str, **fields: Any
) -> tuple[int, dict[str, Any]]:
    """Ask for the configs of one resource; return error code and configs by name."""
    resource = {
        "resource_type": resource_type,
        "resource_name": name,
        "configuration_keys": keys or None,
    }
    response = await node.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], **fields)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return int(result.error_code), {config.name: config for config in result.configs}


async def alter(
    node: FakeNode,
    resource_type: int,
    name: str,
    *operations: tuple[str, int, str | None],
    validate_only: bool = False,
) -> tuple[int, str | None]:
    """Change configs of one resource; return error code and message."""
    resource = {
        "resource_type": resource_type,
        "resource_name": name,
        "configs": [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in operations
        ],
    }
    response = await node.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only
    )
    (result,) = response.responses
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return int(result.error_code), result.error_message


async def configure(
    node: FakeNode, name: str, key: str, value: str | None, operation: int = 0, **fields: Any
) -> tuple[int, str]:
    """Change configs of a broker; return error code and message."""
    configs = [{"name": key, "config_operation": operation, "value": value}]
    configs += [
        {"name": k, "config_operation": operation if v is None else 0, "value": v}
        for k, v in fields.pop("and_", ())
    ]
    response = await node.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": BROKER, "resource_name": name, "configs": configs}],
        **fields,
    )
    (result,) = response.responses
    return int(result.error_code), result.error_message or ""
