"""Requests to a node of a cluster in memory, each in a line, for tests of handlers."""

from typing import Any

from dlog.wire.apis import ApiKey
from tests.fakes.server import FakeNode, FakeQuorum

TOPIC, BROKER = 2, 4


def cluster(nodes: int = 3, leader_id: int | None = 1) -> tuple[FakeNode, FakeQuorum]:
    quorum = FakeQuorum(leader_id)
    node = FakeNode(quorum=quorum)
    for node_id in range(2, nodes + 1):
        node.register(node_id)
    return node, quorum


async def create(node: FakeNode, *topics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await node.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, **{"timeout": 1000, **fields})
    return {each.name: each for each in response.topics}


async def configure(
    node: FakeNode, name: str, key: str, value: str | None, operation: int = 0, **fields: Any
) -> tuple[int, str]:
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
