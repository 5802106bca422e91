"""DeleteTopics: by name, and from version 6 on by id as well."""

from dataclasses import dataclass

from dlog.errors import (
    InvalidRequestError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import ZERO_TOPIC_ID, TopicId
from dlogd.metadata.commands import DeleteTopic
from dlogd.metadata.image import ClusterImage, TopicImage
from dlogd.server.context import ServerContext
from dlogd.server.entities import Fields, milliseconds
from dlogd.server.exchange import Handler, Request, error_fields
from dlogd.server.handlers import topic_creation

IDS_SINCE_VERSION = 6


@dataclass(frozen=True, slots=True)
class _Doomed:
    """One topic as the client names it."""

    name: str | None
    topic_id: TopicId = ZERO_TOPIC_ID


async def answer(context: ServerContext, request: Request) -> Fields:
    """Delete topics, each on its own, for good: records included."""
    deadline_ms = context.deadline_ms(milliseconds(request.body.timeout))
    asked = _asked(request)
    image = context.image()
    repeated = _repeated(image, asked)
    results: dict[_Doomed, Fields] = {}
    found: dict[_Doomed, TopicImage] = {}
    for doomed in asked:
        try:
            if doomed in repeated:
                raise InvalidRequestError(repeated[doomed])
            found[doomed] = _find(image, doomed)
        except WireError as error:
            results[doomed] = _result(doomed, error)
        else:
            results[doomed] = _result(_Doomed(found[doomed].name, found[doomed].topic_id), None)
    commands = [
        DeleteTopic(command_id=context.new_id(), topic_id=topic.topic_id)
        for topic in found.values()
    ]
    outcomes = await context.propose_all(commands, deadline_ms)
    for doomed, outcome in zip(found, outcomes, strict=True):
        if isinstance(outcome, WireError):
            results[doomed] = _result(doomed, outcome)
    return {"responses": list(results.values())}


def _asked(request: Request) -> list[_Doomed]:
    if request.version < IDS_SINCE_VERSION:
        return [_Doomed(name) for name in request.body.topic_names]
    return [_Doomed(topic.name, topic.topic_id or ZERO_TOPIC_ID) for topic in request.body.topics]


def _repeated(image: ClusterImage, asked: list[_Doomed]) -> dict[_Doomed, str]:
    """Return what names a topic that was named before, each with the reason for its refusal."""
    repeated: dict[_Doomed, str] = {}
    twice = topic_creation.names_given_twice([doomed.name for doomed in asked])
    ids_seen: dict[TopicId, _Doomed] = {}
    for doomed in asked:
        if doomed.topic_id != ZERO_TOPIC_ID:
            if doomed.topic_id in ids_seen:
                repeated[doomed] = "Duplicate topic id."
            ids_seen[doomed.topic_id] = doomed
    for doomed in asked:
        if doomed.name is None or doomed.topic_id != ZERO_TOPIC_ID:
            continue
        topic = image.topics.get(doomed.name)
        if doomed.name in twice:
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
