"""DescribeConfigs: which values hold for topics, for this node and for the cluster, and why."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dlog.errors import InvalidRequestError, UnknownTopicOrPartitionError, WireError
from dlogd.metadata.machine.replication_factor import factor_of
from dlogd.metadata.state import broker_configs, effective_configs, topic_names
from dlogd.metadata.state.effective_configs import ConfigEntry
from dlogd.metadata.state.image import NodeRegistration, TopicImage
from dlogd.server.context import ServerContext
from dlogd.server.handlers import node_settings, replication_factor, topology
from dlogd.server.handlers.config_entries import ConfigEntries, key_of
from dlogd.server.handlers.config_resources import ResourceType, check_node_name
from dlogd.server.request import EncodedBody, Handler, Request, error_fields
from dlogd.server.response_builder import Fields

BURST_COUNT = 500
"""Configs encoded before others get their turn."""
RESOURCES_BURST_COUNT = 50
"""The same for resources: those with the same configs cost only copies, but of kilobytes each."""


async def answer(context: ServerContext, request: Request) -> EncodedBody:
    """Describe each resource asked for, once: else 1 MB could ask for 300 MB of one topic."""
    entries = ConfigEntries(
        request.api_key, request.version, "results", lambda entry: _config(request, entry)
    )
    rested_at = 0
    for number, resource in enumerate(dict.fromkeys(request.body.resources), 1):
        try:
            _add(context, entries, resource)
        except WireError as error:
            entries.add_failed(_result(resource, error))
        is_tired = entries.encoded_count - rested_at >= BURST_COUNT
        if is_tired or number % RESOURCES_BURST_COUNT == 0:
            rested_at = entries.encoded_count
            await context.turns.rest()
    return EncodedBody(entries.body())


def _add(context: ServerContext, entries: ConfigEntries, resource: Any) -> None:
    """Add the configs of a resource; raise WireError when it has none."""
    image = context.image()
    name = resource.resource_name
    wanted = resource.configuration_keys
    describe: Callable[[], Sequence[ConfigEntry]]
    same: object  # what resources with the same configs have in common
    if resource.resource_type == ResourceType.TOPIC:
        topic_names.validate(name)
        topic = image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError()
        same = key_of(topic.configs), factor_of(topic)
        describe = partial(_describe_topic, context, topic)
    elif resource.resource_type != ResourceType.BROKER:
        raise InvalidRequestError(f"Unsupported resource type: {resource.resource_type}")
    elif name:
        same, describe = _of_node(context, name)
    else:
        same = "cluster"
        describe = partial(_describe_cluster, context)
    entries.add(
        _result(resource, None),
        (same, image.version),
        describe,
        frozenset(wanted) if wanted else None,
    )


def _describe_topic(context: ServerContext, topic: TopicImage) -> list[ConfigEntry]:
    entries = effective_configs.describe_topic(
        topic.configs, context.image().configs, context.config
    )
    entries.append(replication_factor.describe(topic))
    return sorted(entries, key=lambda entry: entry.name)


def _of_node(
    context: ServerContext, name: str
) -> tuple[object, Callable[[], Sequence[ConfigEntry]]]:
    """Return what a node has: of another one than this only what the metadata knows."""
    image = context.image()
    node = node_settings.node_of(image, name)
    if node is None or node.node_id == context.node_id:
        check_node_name(name, context.node_id)

    def describe() -> list[ConfigEntry]:
        entries = [] if node is None else node_settings.describe_node(node)
        is_own = node is None or node.node_id == context.node_id
        node_id = context.node_id if node is None else node.node_id
        entries += effective_configs.describe_throttles(image.configs, node_id, set_only=not is_own)
        if is_own:
            entries += broker_configs.describe_node(
                image.configs, context.config, _advertised(node)
            )
        return sorted(entries, key=lambda entry: entry.name)

    return ("node", name), describe


def _advertised(node: NodeRegistration | None) -> tuple[str, int] | None:
    """Return the host and port that clients are told, None while the node has not registered."""
    address = None if node is None else topology.address_of(node, "")
    return None if address is None else (address.host, address.port)


def _describe_cluster(context: ServerContext) -> list[ConfigEntry]:
    entries = effective_configs.describe_cluster(context.image().configs)
    entries += node_settings.describe_cluster(context)
    return sorted(entries, key=lambda entry: entry.name)


def _config(request: Request, entry: ConfigEntry) -> Fields:
    synonyms: list[Fields] = []
    if request.body.include_synonyms:
        synonyms = [
            {
                "name": synonym.name,
                "value": None if entry.sensitive else synonym.value,
                "source": synonym.source,
            }
            for synonym in entry.synonyms
        ]
    return {
        "name": entry.name,
        "value": None if entry.sensitive else entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.sensitive,
        "synonyms": synonyms,
        "config_type": entry.type,
        "documentation": entry.doc if request.get("include_documentation", False) else None,
    }


def _result(resource: Any, error: WireError | None) -> Fields:
    return {
        **error_fields(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each resource."""
    return {"results": [_result(resource, error) for resource in request.body.resources]}


HANDLER = Handler(answer, refuse)
