"""CreatePartitions: topics grow, each on its own; the answer waits until the new ones are open."""

from typing import Any

from dlog.errors import (
    InvalidRequestError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlogd.metadata.commands.codec import CreatePartitions
from dlogd.server.context import ServerContext
from dlogd.server.handlers import topic_creation
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.response_builder import Fields, milliseconds


async def answer(context: ServerContext, request: Request) -> Fields:
    """Add partitions, or with `validate_only` say whether they could be."""
    body = request.body
    deadline_ms = context.deadline_ms(milliseconds(body.timeout))
    twice = topic_creation.names_given_twice([topic.name for topic in body.topics])
    room = topic_creation.Room()
    results: dict[str, WireError | None] = {}
    planned: dict[str, CreatePartitions] = {}
    async for topic in context.turns.each(body.topics, topic_creation.BURST_COUNT):
        try:
            if topic.name in twice:
                raise InvalidRequestError("Duplicate topic name.")
            command = _plan(context, topic, room)
            if body.validate_only:
                context.rehearse(command)
            else:
                planned[topic.name] = command
        except WireError as error:
            results[topic.name] = error
        else:
            results[topic.name] = None
    outcomes = await context.propose_all(list(planned.values()), deadline_ms)
    for name, outcome in zip(planned, outcomes, strict=True):
        results[name] = outcome if isinstance(outcome, WireError) else None
    grown = [name for name in planned if results[name] is None]
    if grown and not await context.opened(grown, deadline_ms):
        late = RequestTimedOutError("The partitions were created and are not open yet")
        results.update(dict.fromkeys(grown, late))
    described = context.turns.each(results.items())
    return {"results": [_result(name, error) async for name, error in described]}


def _plan(context: ServerContext, wanted: Any, room: topic_creation.Room) -> CreatePartitions:
    topic = context.image().topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartitionError()
    assignments = None
    if wanted.assignments is not None:
        assignments = [each.broker_ids for each in wanted.assignments]
    planned = topic_creation.plan_growth(context, topic, wanted.count, assignments, room)
    context.turns.spend(len(planned.assignments))
    return planned


def _result(name: str, error: WireError | None) -> Fields:
    return {"name": name, **error_fields(error)}


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each topic."""
    return {"results": [_result(topic.name, error) for topic in request.body.topics]}


HANDLER = Handler(answer, refuse)
