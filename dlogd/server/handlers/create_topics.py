"""CreateTopics: each topic is created or refused on its own.

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
from dlogd.metadata import effective
from dlogd.metadata.commands import CreateTopic
from dlogd.metadata.effective import ConfigEntry
from dlogd.server.context import ServerContext
from dlogd.server.entities import Fields, milliseconds
from dlogd.server.exchange import Answer, EncodedBody, Handler, Request, error_fields
from dlogd.server.handlers import topic_creation
from dlogd.server.handlers.config_entries import ConfigEntries, key_of

UNKNOWN_COUNT = -1
CONFIGS_SINCE_VERSION = 5


async def answer(context: ServerContext, request: Request) -> Answer:
    """Create topics, or with `validate_only` say whether they could be."""
    body = request.body
    deadline_ms = context.deadline_ms(milliseconds(body.timeout))
    twice = topic_creation.names_given_twice([topic.name for topic in body.topics])
    results: dict[str, CreateTopic | WireError] = {}
    created: list[str] = []
    for topic in body.topics:
        try:
            if topic.name in twice:
                raise InvalidRequestError("Duplicate topic name.")
            command = topic_creation.plan(context, _wanted(topic))
            if body.validate_only:
                context.rehearse(command)
            else:
                await context.propose(command, deadline_ms)
                created.append(topic.name)
        except WireError as error:
            results[topic.name] = error
        else:
            results[topic.name] = command
    if created and not await context.opened(created, deadline_ms):
        late = RequestTimedOutError("The topic was created; its partitions are not open yet")
        results.update((name, late) for name in created)
    return _described(context, request, results)


def _wanted(topic: Any) -> topic_creation.NewTopic:
    return topic_creation.NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs=[(config.name, config.value) for config in topic.configs],
    )


def _described(
    context: ServerContext, request: Request, results: Mapping[str, CreateTopic | WireError]
) -> Answer:
    """Say what became of each topic; from version 5 on with the configs of those created."""
    if request.version < CONFIGS_SINCE_VERSION:
        return {
            "topics": [
                _failed(name, result)
                if isinstance(result, WireError)
                else _created(request, result)
                for name, result in results.items()
            ]
        }
    entries = ConfigEntries(request.api_key, request.version, "topics", _config)
    cluster = context.image().configs
    for name, result in results.items():
        if isinstance(result, WireError):
            entries.add_failed(_failed(name, result))
        else:
            describe = partial(effective.describe_topic, result.configs, cluster, context.config)
            entries.add(_created(request, result), key_of(result.configs), describe)
    return EncodedBody(entries.body())


def _created(request: Request, command: CreateTopic) -> Fields:
    return {
        **error_fields(None),
        "name": command.name,
        "topic_id": ZERO_TOPIC_ID if request.body.validate_only else command.topic_id,
        "topic_config_error_code": NONE,
        "num_partitions": len(command.assignments),
        "replication_factor": len(command.assignments[0]),
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
