"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455, KIP-860)."""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from dlog.errors import (
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlogd.metadata.commands.codec import AlterAssignments, Reassignment
from dlogd.metadata.state.image import ClusterImage, PartitionImage, TopicImage
from dlogd.server.context import ServerContext
from dlogd.server.handlers import topic_creation
from dlogd.server.request import Handler, Pieces, Request, error_fields
from dlogd.server.request_turns import at_once
from dlogd.server.response_builder import Fields, milliseconds

Key = tuple[str, int]

BURST_COUNT = 50
"""Partitions tried out before others get their turn: one costs the machine some 0.2 ms."""
COMMAND_PARTITIONS_MAX = 2_000
"""Of one command: some 0.1 s of the machine, on all nodes at once."""


async def answer_alter(context: ServerContext, request: Request) -> Fields:
    """Begin, change or cancel reassignments, each partition on its own."""
    body = request.body
    deadline_ms = context.deadline_ms(milliseconds(body.timeout))
    same_factor = not request.get("allow_replication_factor_change", True)
    failed: dict[Key, WireError] = {}
    begun: dict[Key, Reassignment] = {}
    named = [(topic.name, partition) for topic in body.topics for partition in topic.partitions]
    async for name, partition in context.turns.each(named, BURST_COUNT):
        key = (name, partition.partition_index)
        try:
            if key in begun:
                raise InvalidRequestError(f"Partition {key[0]}-{key[1]} is there twice")
            found = _reassignment(context, name, partition, same_factor=same_factor)
            if found is not None:
                begun[key] = found
        except WireError as error:
            failed[key] = error
    wanted = {key: each for key, each in begun.items() if key not in failed}
    failed |= await _carry_out(context, wanted, deadline_ms)
    return {
        "error_code": 0,
        "error_message": None,
        "allow_replication_factor_change": not same_factor,
        "responses": await context.turns.finish(_responses(request, failed)),
    }


def _reassignment(
    context: ServerContext, name: str, wanted: Any, *, same_factor: bool
) -> Reassignment | None:
    """Return what was asked for of one partition, None when it is so; raise when it cannot be."""
    image = context.image()
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"Unable to find a topic named {name}.")
    partition = topic.partition(wanted.partition_index)
    if partition is None:
        raise UnknownTopicOrPartitionError(
            f"Unable to find partition {name}:{wanted.partition_index}."
        )
    replicas = None
    if wanted.replicas is not None:
        nodes = topic_creation.chosen_nodes(image, wanted.replicas, None)
        replicas = tuple(node.node_id for node in nodes)
        if same_factor:
            _check_factor(topic, wanted.partition_index, partition, len(replicas))
    if context.quorum is None and not (partition.adding or partition.removing):
        # A node alone has no reassignments: its metadata is too old for the command.
        if replicas is None:
            raise NoReassignmentInProgressError(
                f"{topic.topic_partition(wanted.partition_index)} is not being reassigned"
            )
        if replicas == partition.replicas:
            return None
    found = Reassignment(
        topic_id=topic.topic_id, partition=wanted.partition_index, replicas=replicas
    )
    context.rehearse(_command(context, (found,)))
    return found


def _check_factor(topic: TopicImage, number: int, partition: PartitionImage, count: int) -> None:
    """Raise when the partition would have another number of replicas in the end."""
    present = len(partition.replicas) - len(partition.adding)
    if count != present:
        raise InvalidReplicationFactorError(
            f"The replication factor of {topic.topic_partition(number)} is {present} and would"
            f" become {count}"
        )


def _command(context: ServerContext, wanted: Iterable[Reassignment]) -> AlterAssignments:
    return AlterAssignments(command_id=context.new_id(), reassignments=tuple(wanted))


async def _carry_out(
    context: ServerContext, wanted: Mapping[Key, Reassignment], deadline_ms: int
) -> dict[Key, WireError]:
    """Carry all out in as few commands as may be; return what was refused."""
    keys = list(wanted)
    if len(keys) <= COMMAND_PARTITIONS_MAX:
        return await _propose(context, wanted, deadline_ms)
    failed: dict[Key, WireError] = {}
    for begin in range(0, len(keys), COMMAND_PARTITIONS_MAX):
        group = {key: wanted[key] for key in keys[begin : begin + COMMAND_PARTITIONS_MAX]}
        try:
            failed |= await _propose(context, group, deadline_ms)
        except RequestTimedOutError as error:  # of these; others may have been carried out
            failed |= dict.fromkeys(group, error)
    return failed


async def _propose(
    context: ServerContext, wanted: Mapping[Key, Reassignment], deadline_ms: int
) -> dict[Key, WireError]:
    """Carry all out in one command, or one by one when they cannot be together any more."""
    if not wanted:
        return {}
    failed: dict[Key, WireError] = {}
    try:
        await context.propose(_command(context, wanted.values()), deadline_ms)
    except RequestTimedOutError:
        raise
    except WireError as error:
        if len(wanted) == 1:
            return dict.fromkeys(wanted, error)
        for key, each in wanted.items():
            try:
                await context.propose(_command(context, (each,)), deadline_ms)
            except WireError as refused:
                failed[key] = refused
    return failed


def _responses(
    request: Request, failed: Mapping[Key, WireError]
) -> Generator[None, None, list[Fields]]:
    responses: list[Fields] = []
    for topic in request.body.topics:
        partitions: list[Fields] = []
        for each in topic.partitions:
            error = failed.get((topic.name, each.partition_index))
            partitions.append({"partition_index": each.partition_index, **error_fields(error)})
            yield
        responses.append({"name": topic.name, "partitions": partitions})
    return responses


def refuse_alter(request: Request, error: WireError) -> Fields:
    """Carry the error at the top and for each partition."""
    failed = {
        (topic.name, each.partition_index): error
        for topic in request.body.topics
        for each in topic.partitions
    }
    return {
        **error_fields(error),
        "allow_replication_factor_change": request.get("allow_replication_factor_change", True),
        "responses": at_once(_responses(request, failed)),
    }


def answer_list(context: ServerContext, request: Request) -> Pieces:
    """Say which partitions are being reassigned, of those asked for or of all."""
    image = context.image()
    topics = []
    for name, numbers in _asked(image, request):
        topic = image.topics.get(name)
        under_way: list[Fields] = []
        if topic is not None:
            under_way = yield from _under_way(topic, numbers)
        if under_way:
            topics.append({"name": name, "partitions": under_way})
        yield
    return {**error_fields(None), "topics": topics}


def _asked(image: ClusterImage, request: Request) -> Iterable[tuple[str, Iterable[int]]]:
    if request.body.topics is not None:
        return [(each.name, each.partition_indexes) for each in request.body.topics]
    return [(name, range(len(topic.partitions))) for name, topic in image.topics.items()]


def _under_way(topic: TopicImage, numbers: Iterable[int]) -> Generator[None, None, list[Fields]]:
    found: list[Fields] = []
    for number in numbers:
        partition = topic.partition(number)
        if partition is not None and (partition.adding or partition.removing):
            found.append(
                {
                    "partition_index": number,
                    "replicas": partition.replicas,
                    "adding_replicas": partition.adding,
                    "removing_replicas": partition.removing,
                }
            )
        yield
    return found


def refuse_list(_request: Request, error: WireError) -> Fields:
    """Carry the error at the top."""
    return {**error_fields(error), "topics": ()}


ALTER_HANDLER = Handler(answer_alter, refuse_alter)
LIST_HANDLER = Handler(answer_list, refuse_list)
