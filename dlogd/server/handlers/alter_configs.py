"""IncrementalAlterConfigs and its elder AlterConfigs, which replaces all configs of a resource.

Configs of a topic and of the whole cluster (a broker resource without a name) are metadata. A
single node's own configuration is its file, so a broker resource with a name is refused, unless it
is about what operators want of the node (`dlogd.server.handlers.node_settings`), or about throttles
of its replication, which the metadata keeps under names of their own.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dlog.errors import (
    InvalidRequestError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import NodeId
from dlogd.metadata.commands.codec import AlterConfigs, ConfigChange
from dlogd.metadata.machine import config_changes
from dlogd.metadata.machine.config_changes import ConfigOperation, ConfigScope
from dlogd.metadata.state import topic_names
from dlogd.metadata.state.image import TopicImage
from dlogd.metadata.state.topic_configs import NODE_CONFIGS, is_of_a_node, name_for_node
from dlogd.server.context import ServerContext
from dlogd.server.handlers import node_settings, replication_factor
from dlogd.server.handlers.config_resources import ResourceType, check_node_name
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.response_builder import Fields

TIMEOUT_MS = 30_000
"""Neither request says how long its client waits; this is the default of most clients."""
ATTEMPTS_MAX = 5
"""How often operations on a list are planned anew because somebody else changed it meanwhile."""

BURST_COUNT = 100
"""Resources changed or refused before others get their turn."""

Plan = Callable[[ConfigScope, Mapping[str, str], Any], tuple[ConfigChange, ...]]


def _plan_incremental(
    scope: ConfigScope, current: Mapping[str, str], resource: Any
) -> tuple[ConfigChange, ...]:
    is_of_node = resource.resource_type == ResourceType.BROKER and resource.resource_name
    operations = [
        ConfigOperation(key=config.name, operation=config.config_operation, value=config.value)
        for config in resource.configs
        if not (is_of_node and node_settings.is_taken_back(config))
    ]
    return config_changes.plan_incremental(scope, current, operations)


def _plan_replacement(
    scope: ConfigScope, current: Mapping[str, str], resource: Any
) -> tuple[ConfigChange, ...]:
    configs = [(config.name, config.value) for config in resource.configs]
    own = {key: value for key, value in current.items() if not is_of_a_node(key)}
    return config_changes.plan_replacement(scope, own, configs)


def _plan_for_node(
    node_id: NodeId, scope: ConfigScope, current: Mapping[str, str], resource: Any
) -> tuple[ConfigChange, ...]:
    stored = {name: name_for_node(name, node_id) for name in NODE_CONFIGS}
    own = {name: current[key] for name, key in stored.items() if key in current}
    return tuple(
        replace(change, key=stored[change.key])
        for change in _plan_incremental(scope, own, resource)
        if change.value is not None or change.key in own
    )


def _throttled_node(context: ServerContext, resource: Any) -> NodeId | None:
    """Return the node whose throttles alone a resource changes, None for all others."""
    if resource.resource_type != ResourceType.BROKER or not resource.configs:
        return None
    # kafka-reassign-partitions.sh takes back all throttles at once, among them one not known here.
    names = {each.name for each in resource.configs if not node_settings.is_taken_back(each)}
    if not names or not names <= NODE_CONFIGS.keys():
        return None
    node = node_settings.node_of(context.image(), resource.resource_name)
    return None if node is None else node.node_id


async def answer_incremental(context: ServerContext, request: Request) -> Fields:
    """Set, delete, append to and subtract from configs of each resource."""
    return await _answer(context, request, _plan_incremental)


async def answer_legacy(context: ServerContext, request: Request) -> Fields:
    """Replace the configs of each resource by those given."""
    return await _answer(context, request, _plan_replacement)


async def _answer(context: ServerContext, request: Request, plan: Plan) -> Fields:
    resources = request.body.resources
    named = Counter((each.resource_type, each.resource_name) for each in resources)
    deadline_ms = context.deadline_ms(TIMEOUT_MS)
    responses: list[Fields] = []
    async for resource in context.turns.each(resources, BURST_COUNT):
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            incremental = plan is _plan_incremental
            if incremental and await _is_settled(context, request, resource, deadline_ms):
                responses.append(_response(resource, None))
                continue
            node_id = _throttled_node(context, resource) if incremental else None
            scope = ConfigScope.CLUSTER if node_id is not None else _scope_of(context, resource)
            planned = plan if node_id is None else partial(_plan_for_node, node_id)
            await _alter(context, request, resource, scope, planned, deadline_ms)
        except WireError as error:
            responses.append(_response(resource, error))
        else:
            responses.append(_response(resource, None))
    return {"responses": responses}


async def _is_settled(
    context: ServerContext, request: Request, resource: Any, deadline_ms: int
) -> bool:
    """Change what is no config but a setting; return whether the resource is one."""
    if replication_factor.is_about_it(resource):
        await replication_factor.alter(
            context, resource, deadline_ms, validate_only=request.body.validate_only
        )
        return True
    if resource.resource_type != ResourceType.BROKER:
        return False
    if _throttled_node(context, resource) is not None:
        return False
    if not node_settings.is_about_settings(resource):
        refusal = node_settings.refusal_of_mixture(resource)
        if refusal is not None:
            raise refusal
        node_settings.check_known(context.image(), resource)
        return node_settings.is_nothing(context.image(), resource)
    await node_settings.alter(
        context, resource, deadline_ms, validate_only=request.body.validate_only
    )
    return True


def _scope_of(context: ServerContext, resource: Any) -> ConfigScope:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        if not name:
            raise InvalidRequestError("Default topic resources are not allowed.")
        topic_names.validate(name)
        return ConfigScope.TOPIC
    if resource.resource_type != ResourceType.BROKER:
        raise InvalidRequestError(f"Unknown resource type {resource.resource_type}")
    if name:
        check_node_name(name, context.node_id)
        raise InvalidRequestError(
            f"The configuration of node {name} is its file; only configs of the whole cluster"
            " (a broker resource with an empty name) can be altered from here"
        )
    return ConfigScope.CLUSTER


async def _alter(
    context: ServerContext,
    request: Request,
    resource: Any,
    scope: ConfigScope,
    plan: Plan,
    deadline_ms: int,
) -> None:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        topic = _topic_of(context, resource, scope)
        current = context.image().configs if topic is None else topic.configs
        changes = plan(scope, current, resource)
        if not changes:
            return
        command = AlterConfigs(
            command_id=context.new_id(),
            topic_id=None if topic is None else topic.topic_id,
            changes=changes,
        )
        if request.body.validate_only:
            context.rehearse(command)
            return
        try:
            await context.propose(command, deadline_ms)
            return
        except InvalidRequestError:
            if attempt == ATTEMPTS_MAX or not _is_outdated(context, resource, scope, changes):
                raise


def _is_outdated(
    context: ServerContext, resource: Any, scope: ConfigScope, changes: tuple[ConfigChange, ...]
) -> bool:
    """Return whether a value that the changes build upon is another one by now."""
    topic = _topic_of(context, resource, scope)
    current = context.image().configs if topic is None else topic.configs
    return any(each.compare and current.get(each.key) != each.expected for each in changes)


def _topic_of(context: ServerContext, resource: Any, scope: ConfigScope) -> TopicImage | None:
    """Return the topic that is altered, None for the cluster."""
    if scope is ConfigScope.CLUSTER:
        return None
    topic = context.image().topics.get(resource.resource_name)
    if topic is None:
        raise UnknownTopicOrPartitionError()
    return topic


def _response(resource: Any, error: WireError | None) -> Fields:
    return {
        **error_fields(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each resource."""
    return {"responses": [_response(resource, error) for resource in request.body.resources]}


INCREMENTAL_HANDLER = Handler(answer_incremental, refuse)
LEGACY_HANDLER = Handler(answer_legacy, refuse)
