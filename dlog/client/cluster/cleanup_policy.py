"""Cleanup policy of a topic: whether offsets may be missing in its log.

Asked with DescribeConfigs (KIP-133). Called by `dlog.client.consuming.node_fetcher`.
"""

from typing import Any

from dlog.client.cluster.node import NodeClient, raise_for
from dlog.wire.apis import ApiKey

CONFIG_NAME = "cleanup.policy"
_TOPIC = 2


async def is_compacted(node: NodeClient, topic: str) -> bool:
    """Return whether the policy of `topic` contains "compact". Raises WireError."""

    def build(module: Any) -> Any:
        wanted = module.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=(CONFIG_NAME,)
        )
        return module.DescribeConfigsRequest(
            resources=(wanted,), include_synonyms=False, include_documentation=False
        )

    response = await node.call(ApiKey.DESCRIBE_CONFIGS, build)
    for result in response.results:
        raise_for(int(result.error_code), result.error_message)
        for each in result.configs:
            if each.name == CONFIG_NAME:
                return "compact" in (each.value or "")
    return False
