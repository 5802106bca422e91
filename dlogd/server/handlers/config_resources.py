"""Resources of configs: a topic, this node, the cluster. Shared by describing and altering.

Names and checks that describing and altering share. Pure.
"""

from enum import IntEnum

from dlog.errors import InvalidRequestError
from dlog.types import NodeId


class ResourceType(IntEnum):
    """Types of resources with configs, as the protocol numbers them; only two have any here."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def check_node_name(name: str, node_id: NodeId) -> None:
    """Raise InvalidRequestError when a broker resource is not this node."""
    try:
        named = int(name)
    except ValueError:
        raise InvalidRequestError(f"Broker id must be an integer, but it is: {name}") from None
    if named != node_id:
        raise InvalidRequestError(
            f"Unexpected broker id, expected {node_id} or empty string, but received {name}"
        )
