"""Default acknowledgement of a topic or cluster: its config `ack.default`.

Read by DescribeConfigs from dlog; Apache Kafka has no such config. Called by `Cluster`.
"""

from typing import Any

from dlog.client.cluster.node import NodeClient
from dlog.errors import NONE, WireError
from dlog.wire.apis import ApiKey

ACK_DEFAULT = "all"
ACK_DEFAULTS = ("all", "leader", "none")
CONFIG_NAME = "ack.default"
_TOPIC, _BROKER = 2, 4  # KIP-133


async def find_ack_default(node: NodeClient, topic: str | None = None) -> str:
    """Return the `ack.default` of a topic or of the cluster; "all" where there is none."""

    def build(module: Any) -> Any:
        wanted = module.DescribeConfigsResource(
            resource_type=_BROKER if topic is None else _TOPIC,
            resource_name=topic or "",
            configuration_keys=(CONFIG_NAME,),
        )
        return module.DescribeConfigsRequest(
            resources=(wanted,), include_synonyms=False, include_documentation=False
        )

    try:
        response = await node.call(ApiKey.DESCRIBE_CONFIGS, build)
    except WireError as error:
        if error.retriable:
            raise
        return ACK_DEFAULT
    for result in response.results:
        for each in result.configs if int(result.error_code) == NONE else ():
            if each.name == CONFIG_NAME and each.value in ACK_DEFAULTS:
                return str(each.value)
    return ACK_DEFAULT
