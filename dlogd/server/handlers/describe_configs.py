"""DescribeConfigs: which values hold for topics, for this node and for the cluster, and why."""

from collections.abc import Sequence
from typing import Any

from dlog.errors import InvalidRequestError, UnknownTopicOrPartitionError, WireError
from dlogd.metadata import effective, topic_names
from dlogd.metadata.effective import ConfigEntry
from dlogd.server.context import ServerContext
from dlogd.server.entities import Fields
from dlogd.server.exchange import Handler, Request, error_fields
from dlogd.server.handlers.config_resources import SERVED, ResourceType, check_node_name


def answer(context: ServerContext, request: Request) -> Fields:
    """Describe each resource asked for."""
    results: list[Fields] = []
    for resource in request.body.resources:
        try:
            entries = _entries(context, resource.resource_type, resource.resource_name)
        except WireError as error:
            results.append(_result(resource, error, ()))
            continue
        wanted = resource.configuration_keys
        configs = [
            _config(request, entry) for entry in entries if not wanted or entry.name in wanted
        ]
        results.append(_result(resource, None, configs))
    return {"results": results}


def _entries(context: ServerContext, resource_type: int, name: str) -> Sequence[ConfigEntry]:
    image = context.image()
    if resource_type not in SERVED:
        raise InvalidRequestError(f"Unsupported resource type: {resource_type}")
    if resource_type == ResourceType.TOPIC:
        topic_names.validate(name)
        topic = image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError()
        return effective.describe_topic(topic.configs, image.configs, context.config)
    if not name:
        return effective.describe_cluster(image.configs)
    check_node_name(name, context.node_id)
    return effective.describe_node(image.configs, context.config)


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


def _result(resource: Any, error: WireError | None, configs: Sequence[Fields]) -> Fields:
    return {
        **error_fields(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": configs,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each resource."""
    return {"results": [_result(resource, error, ()) for resource in request.body.resources]}


HANDLER = Handler(answer, refuse)
