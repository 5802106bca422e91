"""DeleteTopics: by name, and from version 6 on by id as well.

Many are one round of the metadata where the cluster's feature level allows it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dlog.errors import (
    InvalidRequestError,
    RequestTimedOutError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import ZERO_TOPIC_ID, TopicId
from dlogd.metadata.commands.codec import DeleteTopic, DeleteTopics
from dlogd.metadata.state.image import ClusterImage, TopicImage
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.response_builder import Fields, milliseconds

IDS_SINCE_VERSION = 6
LEVEL_TOGETHER = 3
"""The feature level from which one command may delete many topics."""
COMMAND_TOPICS_MAX = 5_000
"""That one command deletes together."""


class _Doomed(NamedTuple):
    """One topic as the client names it."""

    name: str | None
    topic_id: TopicId = ZERO_TOPIC_ID


async def answer(context: ServerContext, request: Request) -> Fields:
    """Delete topics, each on its own, for good: records included."""
    deadline_ms = context.deadline_ms(milliseconds(request.body.timeout))
    asked = [doomed async for doomed in context.turns.each(_asked(request))]
    image = context.image()
    repeated = await _repeated(context, image, asked)
    results: dict[_Doomed, Fields] = {}
    found: dict[_Doomed, TopicImage] = {}
    async for doomed in context.turns.each(asked):
        try:
            if doomed in repeated:
                raise InvalidRequestError(repeated[doomed])
            found[doomed] = _find(image, doomed)
        except WireError as error:
            results[doomed] = _result(doomed, error)
        else:
            results[doomed] = _result(_Doomed(found[doomed].name, found[doomed].topic_id), None)
    failed = await _delete(context, [topic.topic_id for topic in found.values()], deadline_ms)
    async for doomed, topic in context.turns.each(found.items()):
        if topic.topic_id in failed:
            results[doomed] = _result(doomed, failed[topic.topic_id])
    return {"responses": list(results.values())}


async def _delete(
    context: ServerContext, topic_ids: Sequence[TopicId], deadline_ms: int
) -> dict[TopicId, WireError]:
    """Delete topics, in one round where possible; return what was refused, by id."""
    if len(topic_ids) < 2 or context.image().feature_level < LEVEL_TOGETHER:
        return await _delete_each(context, topic_ids, deadline_ms)
    failed: dict[TopicId, WireError] = {}
    for begin in range(0, len(topic_ids), COMMAND_TOPICS_MAX):
        group = tuple(topic_ids[begin : begin + COMMAND_TOPICS_MAX])
        try:
            command = DeleteTopics(command_id=context.new_id(), topic_ids=group)
            await context.propose(command, deadline_ms)
        except RequestTimedOutError as error:
            failed.update(dict.fromkeys(group, error))
        except WireError:
            # One of them is not there any more: somebody else was faster.
            failed |= await _delete_each(context, group, deadline_ms)
    return failed


async def _delete_each(
    context: ServerContext, topic_ids: Sequence[TopicId], deadline_ms: int
) -> dict[TopicId, WireError]:
    commands = [DeleteTopic(command_id=context.new_id(), topic_id=each) for each in topic_ids]
    outcomes = await context.propose_all(commands, deadline_ms)
    return {
        topic_id: outcome
        for topic_id, outcome in zip(topic_ids, outcomes, strict=True)
        if isinstance(outcome, WireError)
    }


def _asked(request: Request) -> Iterator[_Doomed]:
    if request.version < IDS_SINCE_VERSION:
        return (_Doomed(name) for name in request.body.topic_names)
    return (_Doomed(topic.name, topic.topic_id or ZERO_TOPIC_ID) for topic in request.body.topics)


async def _repeated(
    context: ServerContext, image: ClusterImage, asked: list[_Doomed]
) -> dict[_Doomed, str]:
    """Return what names a topic that was named before, each with the reason for its refusal."""
    repeated: dict[_Doomed, str] = {}
    times_named: dict[str | None, int] = {}
    ids_seen: dict[TopicId, _Doomed] = {}
    async for doomed in context.turns.each(asked):
        times_named[doomed.name] = times_named.get(doomed.name, 0) + 1
        if doomed.topic_id != ZERO_TOPIC_ID:
            if doomed.topic_id in ids_seen:
                repeated[doomed] = "Duplicate topic id."
            ids_seen[doomed.topic_id] = doomed
    async for doomed in context.turns.each(asked):
        if doomed.name is None or doomed.topic_id != ZERO_TOPIC_ID:
            continue
        topic = image.topics.get(doomed.name)
        if times_named[doomed.name] > 1:
            repeated[doomed] = "Duplicate topic name."
        elif topic is not None and topic.topic_id in ids_seen:
            reason = "The provided topic name maps to an ID that was already supplied."
            repeated[doomed] = reason
            repeated[ids_seen[topic.topic_id]] = reason
    return repeated


def _find(image: ClusterImage, doomed: _Doomed) -> TopicImage:
    if doomed.name is None:
        if doomed.topic_id == ZERO_TOPIC_ID:
            raise InvalidRequestError("Neither topic name nor id were specified.")
        topic = image.topics_by_id.get(doomed.topic_id)
        if topic is None:
            raise UnknownTopicIdError()
        return topic
    if doomed.topic_id != ZERO_TOPIC_ID:
        raise InvalidRequestError("You may not specify both topic name and topic id.")
    topic = image.topics.get(doomed.name)
    if topic is None:
        raise UnknownTopicOrPartitionError()
    return topic


def _result(doomed: _Doomed, error: WireError | None) -> Fields:
    return {**error_fields(error), "name": doomed.name, "topic_id": doomed.topic_id}


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each topic."""
    return {"responses": [_result(doomed, error) for doomed in _asked(request)]}


HANDLER = Handler(answer, refuse)
