"""ElectLeaders: preferred or unclean ones, for partitions that are named or for all (KIP-460)."""

from collections.abc import Generator, Iterable
from typing import Any

from dlog.errors import (
    ElectionNotNeededError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import TopicId
from dlogd.metadata.commands.codec import ElectionKind, ElectLeaders
from dlogd.metadata.machine.partition import why_no_election
from dlogd.metadata.state.image import ClusterImage, TopicImage
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.request_turns import at_once
from dlogd.server.response_builder import Fields, milliseconds

Verdicts = dict[int, WireError | None]
"""What becomes of the partitions of one topic; None where a leader is elected."""

Judged = list[tuple[str, Verdicts]]
Judging = Generator[None, None, Judged]


async def answer(context: ServerContext, request: Request) -> Fields:
    """Elect leaders; say of each partition what became of it."""
    kind = _kind(request)
    deadline_ms = context.deadline_ms(milliseconds(request.body.timeout))
    before = context.image()
    asked = request.body.topic_partitions
    judging = _all(before, kind) if asked is None else _named(before, asked, kind)
    judged = await context.turns.finish(judging)
    electable: dict[TopicId, dict[int, None]] = {}
    for name, verdicts in judged:
        for number, verdict in verdicts.items():
            if verdict is None:
                electable.setdefault(before.topics[name].topic_id, {})[number] = None
    if electable:
        command = ElectLeaders(
            command_id=context.new_id(),
            election=kind,
            partitions=tuple((topic_id, tuple(numbers)) for topic_id, numbers in electable.items()),
        )
        await context.propose(command, deadline_ms)
        for name, verdicts in judged:
            _look_again(before, context.image(), name, verdicts, kind)
    results = await context.turns.finish(_results(judged))
    return {"error_code": 0, "replica_election_results": results}


def _kind(request: Request) -> ElectionKind:
    number = request.get("election_type", int(ElectionKind.PREFERRED))
    if number not in (ElectionKind.PREFERRED, ElectionKind.UNCLEAN):
        raise InvalidRequestError(f"Unknown election type {number}")
    return ElectionKind(number)


def _named(image: ClusterImage, asked: Iterable[Any], kind: ElectionKind) -> Judging:
    """Return what becomes of the partitions asked for; yields behind each."""
    judged: Judged = []
    for each in asked:
        topic = image.topics.get(each.topic)
        missing = UnknownTopicOrPartitionError(f"No such topic as {each.topic}")
        verdicts: Verdicts = {}
        for number in each.partitions:
            verdicts[number] = (
                missing if topic is None else why_no_election(image, topic, number, kind)
            )
            yield
        judged.append((each.topic, verdicts))
    return judged


def _all(image: ClusterImage, kind: ElectionKind) -> Judging:
    """Return all partitions but those that have the leader that is wanted; yields behind each."""
    judged: Judged = []
    for topic in image.topics.values():
        verdicts: Verdicts = {}
        for number in range(len(topic.partitions)):
            verdict = why_no_election(image, topic, number, kind)
            if not isinstance(verdict, ElectionNotNeededError):
                verdicts[number] = verdict
            yield
        if verdicts:
            judged.append((topic.name, verdicts))
    return judged


def _look_again(
    before: ClusterImage, after: ClusterImage, name: str, verdicts: Verdicts, kind: ElectionKind
) -> None:
    """Take back what the election did not bring: something else happened meanwhile."""
    for number, verdict in verdicts.items():
        if verdict is None:
            verdicts[number] = _failure(before.topics[name], after, number, kind)


def _failure(
    topic: TopicImage, after: ClusterImage, number: int, kind: ElectionKind
) -> WireError | None:
    now = after.topics_by_id.get(topic.topic_id)
    if now is None:
        return UnknownTopicOrPartitionError(f"No such topic as {topic.name}")
    if now.partitions[number].leader_epoch > topic.partitions[number].leader_epoch:
        return None
    error = why_no_election(after, now, number, kind)
    return None if isinstance(error, ElectionNotNeededError) else error


def _results(judged: Judged) -> Generator[None, None, list[Fields]]:
    """Return what the answer says of each partition; yields behind each."""
    results: list[Fields] = []
    for name, verdicts in judged:
        partitions: list[Fields] = []
        for number, error in verdicts.items():
            partitions.append({"partition_id": number, **error_fields(error)})
            yield
        results.append({"topic": name, "partition_result": partitions})
    return results


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error at the top and for each partition: version 0 has no other place for it."""
    asked: Iterable[Any] = request.body.topic_partitions or ()
    judged: Judged = [(each.topic, dict.fromkeys(each.partitions, error)) for each in asked]
    return {"error_code": error.code, "replica_election_results": at_once(_results(judged))}


HANDLER = Handler(answer, refuse)
