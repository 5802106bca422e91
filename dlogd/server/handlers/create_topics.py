"""CreateTopics: each topic is created or refused on its own, all in one round of the metadata.

The answer waits until the new partitions are open on this node, so that a client that produces
right away finds them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from dlog.errors import (
    NONE,
    InvalidRequestError,
    RequestTimedOutError,
    WireError,
)
from dlog.types import ZERO_TOPIC_ID
from dlogd.metadata.commands.codec import NewTopic
from dlogd.metadata.state import effective_configs
from dlogd.metadata.state.effective_configs import ConfigEntry
from dlogd.server.context import ServerContext
from dlogd.server.handlers import topic_creation
from dlogd.server.handlers.config_entries import ConfigEntries, key_of
from dlogd.server.request import Answer, EncodedBody, Handler, Pieces, Request, error_fields
from dlogd.server.response_builder import Fields, milliseconds

UNKNOWN_COUNT = -1
CONFIGS_SINCE_VERSION = 5


async def answer(context: ServerContext, request: Request) -> Answer:
    """Create topics, or with `validate_only` say whether they could be."""
    body = request.body
    deadline_ms = context.deadline_ms(milliseconds(body.timeout))
    twice = topic_creation.names_given_twice([topic.name for topic in body.topics])
    planner = topic_creation.Planner(context)
    results: dict[str, NewTopic | WireError] = {}
    planned: list[NewTopic] = []
    async for topic in context.turns.each(body.topics, topic_creation.BURST_COUNT):
        try:
            if topic.name in twice:
                raise InvalidRequestError("Duplicate topic name.")
            new = planner.plan(_wanted(topic))
            if body.validate_only:
                context.rehearse(topic_creation.alone(context, new))
        except WireError as error:
            results[topic.name] = error
        else:
            results[topic.name] = new
            planned.append(new)
    if not body.validate_only:
        results |= await _created_now(context, planner, planned, deadline_ms)
    return await context.turns.finish(_described(context, request, results))


async def _created_now(
    context: ServerContext,
    planner: topic_creation.Planner,
    planned: list[NewTopic],
    deadline_ms: int,
) -> dict[str, WireError]:
    """Create the topics; return what became of those that are not as they should be."""
    failed = await topic_creation.create(context, planner, planned, deadline_ms)
    created = [topic.name for topic in planned if topic.name not in failed]
    if created and not await context.opened(created, deadline_ms):
        late = RequestTimedOutError("The topic was created; its partitions are not open yet")
        failed.update((name, late) for name in created)
    return failed


def _wanted(topic: Any) -> topic_creation.WantedTopic:
    return topic_creation.WantedTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs=[(config.name, config.value) for config in topic.configs],
    )


def _described(
    context: ServerContext, request: Request, results: Mapping[str, NewTopic | WireError]
) -> Pieces:
    """Say what became of each topic; from version 5 on with the configs of those created."""
    if request.version < CONFIGS_SINCE_VERSION:
        topics: list[Fields] = []
        for name, result in results.items():
            if isinstance(result, WireError):
                topics.append(_failed(name, result))
            else:
                topics.append(_created(request, result))
            yield
        return {"topics": topics}
    entries = ConfigEntries(request.api_key, request.version, "topics", _config)
    cluster = context.image().configs
    for name, result in results.items():
        if isinstance(result, WireError):
            entries.add_failed(_failed(name, result))
        else:
            describe = partial(
                effective_configs.describe_topic, result.configs, cluster, context.config
            )
            entries.add(_created(request, result), key_of(result.configs), describe)
        yield
    return EncodedBody(entries.body())


def _created(request: Request, topic: NewTopic) -> Fields:
    return {
        **error_fields(None),
        "name": topic.name,
        "topic_id": ZERO_TOPIC_ID if request.body.validate_only else topic.topic_id,
        "topic_config_error_code": NONE,
        "num_partitions": len(topic.assignments),
        "replication_factor": len(topic.assignments[0]),
    }


def _config(entry: ConfigEntry) -> Fields:
    return {
        "name": entry.name,
        "value": None if entry.sensitive else entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.sensitive,
    }


def _failed(name: str, error: WireError) -> Fields:
    return {
        **error_fields(error),
        "name": name,
        "topic_id": ZERO_TOPIC_ID,
        "topic_config_error_code": NONE,
        "num_partitions": UNKNOWN_COUNT,
        "replication_factor": UNKNOWN_COUNT,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each topic."""
    return {"topics": [_failed(topic.name, error) for topic in request.body.topics]}


HANDLER = Handler(answer, refuse)
