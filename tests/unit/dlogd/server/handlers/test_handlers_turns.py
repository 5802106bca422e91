"""One request of very many entries holds nobody up: reading, answering, counting and encoding."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dlog.errors import ProtocolError
from dlog.wire import frame, messages
from dlog.wire.apis import ApiKey
from dlogd.server import dispatch, request_turns, response_builder
from dlogd.server.handlers import (
    alter_configs,
    describe_configs,
    reassignments,
    topic_creation,
)
from dlogd.server.request import Handler, Request
from dlogd.server.request_turns import PIECE_ENTRIES, RequestTurns
from dlogd.server.session import Session
from tests.fakes.server import FakeNode

COUNT = 20 * PIECE_ENTRIES
NAMES = [f"n{number}" for number in range(COUNT)]
NUMBERS = range(COUNT)
TOPIC_RESOURCE = 2

Asked = dict[str, Any]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def of_topic(key: str, entry: Callable[[int], Asked], *, name: str = "name") -> Asked:
    """Return a request for many partitions of one topic that has six of them."""
    return {"topics": [{name: "t", key: [entry(number) for number in NUMBERS]}]}


REQUESTS: dict[str, tuple[ApiKey, int, Asked]] = {
    "metadata": (ApiKey.METADATA, 4, {"topics": [{"name": name} for name in NAMES]}),
    "list offsets": (
        ApiKey.LIST_OFFSETS,
        4,
        {
            "replica_id": -1,
            "isolation_level": 0,
            **of_topic(
                "partitions",
                lambda n: {"partition_index": n, "current_leader_epoch": -1, "timestamp": -1},
            ),
        },
    ),
    "leader epochs": (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        3,
        {
            "replica_id": -1,
            **of_topic(
                "partitions",
                lambda n: {"partition": n % 6, "current_leader_epoch": -1, "leader_epoch": 0},
                name="topic",
            ),
        },
    ),
    "delete topics": (ApiKey.DELETE_TOPICS, 4, {"topic_names": NAMES, "timeout": 1000}),
    "delete records": (
        ApiKey.DELETE_RECORDS,
        1,
        {**of_topic("partitions", lambda n: {"partition_index": n, "offset": 0}), "timeout": 1000},
    ),
    "describe configs": (
        ApiKey.DESCRIBE_CONFIGS,
        1,
        {
            "resources": [
                {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
                for name in NAMES
            ]
        },
    ),
    "alter configs": (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        0,
        {
            "resources": [
                {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": ()}
                for name in NAMES
            ],
            "validate_only": True,
        },
    ),
    "create partitions": (
        ApiKey.CREATE_PARTITIONS,
        1,
        {
            "topics": [{"name": name, "count": 2, "assignments": None} for name in NAMES],
            "timeout": 1000,
            "validate_only": True,
        },
    ),
    "elect": (
        ApiKey.ELECT_LEADERS,
        1,
        {
            "election_type": 0,
            "topic_partitions": [{"topic": "t", "partitions": tuple(NUMBERS)}],
            "timeout": 1000,
        },
    ),
    "reassign": (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        {
            "timeout": 1000,
            **of_topic("partitions", lambda n: {"partition_index": n, "replicas": (1,)}),
        },
    ),
    "describe topics": (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": name} for name in NAMES], "cursor": None},
    ),
}
PASSES = COUNT // PIECE_ENTRIES - 1
RESTS = {
    # Each pass over the entries in pieces: they are read, answered, counted as errors, encoded.
    "metadata": 2 * PASSES,  # encoded as they are answered, and missing topics are no errors
    "list offsets": 4 * PASSES,
    "leader epochs": 4 * PASSES,
    "delete topics": 7 * PASSES,  # of which three look for names that are given twice
    "delete records": 4 * PASSES,
    "describe configs": PASSES + COUNT // describe_configs.RESOURCES_BURST_COUNT,
    "alter configs": 3 * PASSES + COUNT // alter_configs.BURST_COUNT - 1,
    "create partitions": 4 * PASSES + COUNT // topic_creation.BURST_COUNT - 1,
    "elect": 4 * PASSES,  # numbers are read at once; the verdicts are written down
    "reassign": 4 * PASSES + COUNT // reassignments.BURST_COUNT - 1,
    "describe topics": 4 * PASSES,
}


def frame_of(api_key: ApiKey, version: int, fields: Asked) -> memoryview:
    entity = response_builder.build_request(api_key, version, fields)
    return memoryview(messages.encode_request(entity, 7, "test"))


async def respond(node: FakeNode, sent: memoryview) -> bytes:
    header = frame.parse_request_header(sent, frame.LENGTH_BYTES, len(sent))
    answer = node.dispatcher.respond(header, sent, len(sent), Session())
    return answer if isinstance(answer, bytes) else await answer


@pytest.mark.parametrize("name", REQUESTS)
def test_many_entries_are_worked_on_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api_key, version, fields = REQUESTS[name]

    async def test() -> None:
        node = FakeNode()
        await node.create("t", 6)
        rests = 0
        rest = RequestTurns.rest

        async def counting(queue: RequestTurns) -> None:
            nonlocal rests
            rests += 1
            await rest(queue)

        monkeypatch.setattr(RequestTurns, "rest", counting)
        answer = await respond(node, frame_of(api_key, version, fields))
        assert rests >= RESTS[name]
        assert not node.dispatcher.error_total
        messages.parse_response(api_key, version, memoryview(answer)[4:])

    run(test())


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_read_and_written_in_pieces_is_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_key, version, fields = REQUESTS[name]
    sent = frame_of(api_key, version, fields)

    async def test() -> None:
        node = FakeNode()
        await node.create("t", 6)
        in_pieces = await respond(node, sent)
        monkeypatch.setattr(dispatch, "LARGE_BYTES", 1 << 30)
        monkeypatch.setattr(request_turns, "PIECE_ENTRIES", 1 << 30)
        assert await respond(node, sent) == in_pieces

    run(test())


def test_nonsense_in_a_large_request_is_told_as_in_a_small_one() -> None:
    async def test() -> None:
        node = FakeNode()
        sent = frame_of(*REQUESTS["delete topics"])[:-300]
        with pytest.raises(ProtocolError):
            await respond(node, sent)

    run(test())


def test_a_defect_on_the_way_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_context: object, _request: Request) -> Any:
        for _ in NUMBERS:
            yield
        raise RuntimeError("a defect")

    async def test() -> None:
        node = FakeNode()
        handlers = node.dispatcher._handlers
        refuse = handlers[ApiKey.METADATA].refuse
        handlers[ApiKey.METADATA] = Handler(answer, refuse)
        response = await node.ask(ApiKey.METADATA, 4, topics=[{"name": "a"}])
        assert [int(each.error_code) for each in response.topics] == [-1]
        assert node.dispatcher.error_total == 1

    run(test())


def test_one_piece_of_one_request_in_each_iteration() -> None:
    """However many there are: six that rested in every iteration still took a node's lease."""

    async def test() -> None:
        queue = RequestTurns()
        seen: list[tuple[int, int]] = []
        iteration = 0

        async def count() -> None:
            nonlocal iteration
            while True:
                iteration += 1
                await asyncio.sleep(0)

        async def work(number: int) -> None:
            async for item in queue.each(range(40), 10):
                if item in (10, 20, 30):
                    seen.append((iteration, number))  # noqa: PERF401 - each in its own iteration

        counting = asyncio.ensure_future(count())
        cancelled = asyncio.ensure_future(work(9))
        tasks = [asyncio.ensure_future(work(number)) for number in range(6)]
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*tasks)
        counting.cancel()
        assert len(seen) == 18
        assert len({each for each, _ in seen}) == 18
        assert [number for _, number in seen] == [*range(6)] * 3

    run(test())


def test_little_is_answered_at_once() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t", 6)
        for api_key, fields in (
            (ApiKey.METADATA, {"topics": [{"name": "t"}, {"name": "u"}]}),
            (ApiKey.OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": ()}),
        ):
            sent = frame_of(api_key, 4, fields)
            header = frame.parse_request_header(sent, frame.LENGTH_BYTES, len(sent))
            answer = node.dispatcher.respond(header, sent, len(sent), Session())
            assert isinstance(answer, bytes)

    run(test())
