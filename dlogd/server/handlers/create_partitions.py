"""CreatePartitions: topics grow, each on its own; the answer waits until the new ones are open."""

from typing import Any

from dlog.errors import (
    InvalidRequestError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlogd.server.context import ServerContext
from dlogd.server.entities import Fields, milliseconds
from dlogd.server.exchange import Handler, Request, error_fields
from dlogd.server.handlers import topic_creation


async def answer(context: ServerContext, request: Request) -> Fields:
    """Add partitions, or with `validate_only` say whether they could be."""
    body = request.body
    deadline_ms = context.deadline_ms(milliseconds(body.timeout))
    twice = topic_creation.names_given_twice([topic.name for topic in body.topics])
    results: dict[str, Fields] = {}
    grown: list[str] = []
    for topic in body.topics:
        try:
            if topic.name in twice:
                raise InvalidRequestError("Duplicate topic name.")
            await _grow(context, topic, body.validate_only, deadline_ms)
        except WireError as error:
            results[topic.name] = _result(topic.name, error)
        else:
            results[topic.name] = _result(topic.name, None)
            grown.append(topic.name)
    if grown and not body.validate_only and not await context.opened(grown, deadline_ms):
        late = RequestTimedOutError("The partitions were created and are not open yet")
        results.update((name, _result(name, late)) for name in grown)
    return {"results": list(results.values())}


async def _grow(context: ServerContext, wanted: Any, rehearse: bool, deadline_ms: int) -> None:
    topic = context.image().topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartitionError()
    assignments = None
    if wanted.assignments is not None:
        assignments = [each.broker_ids for each in wanted.assignments]
    command = topic_creation.plan_growth(context, topic, wanted.count, assignments)
    if rehearse:
        context.rehearse(command)
    else:
        await context.propose(command, deadline_ms)


def _result(name: str, error: WireError | None) -> Fields:
    return {"name": name, **error_fields(error)}


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each topic."""
    return {"results": [_result(topic.name, error) for topic in request.body.topics]}


HANDLER = Handler(answer, refuse)
