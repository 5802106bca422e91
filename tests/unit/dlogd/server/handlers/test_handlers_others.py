"""ApiVersions, FindCoordinator, InitProducerId, DescribeLogDirs; and the builder of entities."""

import asyncio
import datetime
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import ApiKey, advertised
from dlogd.metadata.commands.codec import Command
from dlogd.metadata.state.image import Outcome, Refused, Unknown
from dlogd.server import response_builder
from dlogd.server.context import LogDir
from dlogd.server.handlers import producer_ids
from tests.fakes.server import FakeClock, FakeNode


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


class TestApiVersions:
    """What is served."""

    @pytest.mark.parametrize("version", range(5))
    def test_everything_is_listed(self, version: int) -> None:
        async def test() -> None:
            response = await FakeNode().ask(
                ApiKey.API_VERSIONS,
                version,
                client_software_name="a-1.b",
                client_software_version="2",
            )
            assert response.error_code == 0
            ranges = [(r.api_key, r.min_version, r.max_version) for r in response.api_keys]
            assert ranges == advertised()

        run(test())

    @pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "ä", "a\n"])
    def test_clients_must_have_a_name(self, name: str) -> None:
        async def test() -> None:
            for fields in ((name, "1"), ("a", name)):
                response = await FakeNode().ask(
                    ApiKey.API_VERSIONS,
                    3,
                    client_software_name=fields[0],
                    client_software_version=fields[1],
                )
                assert response.error_code == 42
                assert response.api_keys == ()

        run(test())


class TestFindCoordinator:
    """There is none."""

    @pytest.mark.parametrize("version", range(7))
    @pytest.mark.parametrize(("key_type", "expected"), [(0, 15), (1, 53)])
    def test_nobody_coordinates(self, version: int, key_type: int, expected: int) -> None:
        if version == 0:
            expected = 15  # without a type: a group's

        async def test() -> None:
            response = await FakeNode().ask(
                ApiKey.FIND_COORDINATOR,
                version,
                key="g",
                coordinator_keys=["g", "h"],
                key_type=key_type,
            )
            if version < 4:
                assert (response.error_code, response.node_id) == (expected, -1)
            else:
                assert [(c.key, c.error_code, c.node_id) for c in response.coordinators] == [
                    ("g", expected, -1),
                    ("h", expected, -1),
                ]

        run(test())

    @pytest.mark.parametrize(("version", "key_type"), [(5, 2), (6, 3), (1, -1)])
    def test_other_types_are_refused(self, version: int, key_type: int) -> None:
        async def test() -> None:
            response = await FakeNode().ask(
                ApiKey.FIND_COORDINATOR,
                version,
                key="g",
                coordinator_keys=["g"],
                key_type=key_type,
            )
            code = response.error_code if version < 4 else response.coordinators[0].error_code
            assert code == 42

        run(test())


class TestInitProducerId:
    """Ids for idempotent producers."""

    async def take(self, node: FakeNode, version: int = 5, **fields: Any) -> Any:
        return await node.ask(
            ApiKey.INIT_PRODUCER_ID,
            version,
            **{
                "transactional_id": None,
                "transaction_timeout": 0,
                "producer_id": -1,
                "producer_epoch": -1,
                **fields,
            },
        )

    def test_ids_are_unique_over_blocks_and_restarts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(producer_ids, "BLOCK_COUNT", 3)

        async def test() -> None:
            node = FakeNode()
            taken = [(await self.take(node)).producer_id for _ in range(7)]
            assert taken == list(range(7))
            assert len(node.commands) == 3
            restarted = FakeNode(seed=2)
            restarted.image = node.image
            assert (await self.take(restarted)).producer_id == 9

        run(test())

    def test_ids_that_a_log_knows_are_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(producer_ids, "BLOCK_COUNT", 3)

        async def test() -> None:
            known = {0, 1, 7, 40, 5_000_000}  # the last was made up by its client
            node = FakeNode()
            node.context.producer_id_in_use = lambda first, end: max(
                (each for each in known if first <= each < end), default=-1
            )
            taken = [(await self.take(node)).producer_id for _ in range(7)]
            assert taken == list(range(41, 48))
            assert node.image.producer_id_next >= 48

        run(test())

    def test_ids_of_a_block_that_another_node_takes_meanwhile_stay_its_own(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its producer has written here before this node hears of its own block."""
        monkeypatch.setattr(producer_ids, "BLOCK_COUNT", 3)

        async def test() -> None:
            known: set[int] = set()
            node = FakeNode()
            propose = node.context.propose_command

            async def late(*arguments: Any) -> Any:
                outcome = await propose(*arguments)
                if not known:
                    taken = node.image.producer_id_next
                    node.image = replace(node.image, producer_id_next=taken + 3)
                    known.add(taken)
                return outcome

            node.context.propose_command = late
            node.context.producer_id_in_use = lambda first, end: max(
                (each for each in known if first <= each < end), default=-1
            )
            taken = [(await self.take(node)).producer_id for _ in range(20)]
            assert len(set(taken)) == 20
            assert not {3, 4, 5}.intersection(taken)
            assert not [each for each in caplog.records if "older" in each.getMessage()]

        run(test())

    def test_many_at_once_take_one_block(self) -> None:
        async def test() -> None:
            node = FakeNode()
            propose = node.context.propose_command

            async def slowly(*arguments: Any) -> Any:
                await asyncio.sleep(0)
                return await propose(*arguments)

            node.context.propose_command = slowly
            answers = await asyncio.gather(*[self.take(node) for _ in range(50)])
            assert sorted(a.producer_id for a in answers) == list(range(50))
            assert len(node.commands) == 1

        run(test())

    def test_who_waits_behind_others_waits_no_longer_than_they(self) -> None:
        async def test() -> None:
            node = FakeNode()
            clock = cast(FakeClock, node.context.clock)
            begin_ms = clock.time_ms

            async def in_vain(_command: Command, deadline_ms: int) -> Outcome:
                await asyncio.sleep(0)
                clock.time_ms = max(clock.time_ms, deadline_ms)
                return Unknown(message="no quorum")

            node.context.propose_command = in_vain
            answers = await asyncio.gather(*[self.take(node) for _ in range(20)])
            assert {answer.error_code for answer in answers} == {14}
            assert clock.time_ms - begin_ms == producer_ids.TIMEOUT_MS

        run(test())

    def test_a_producer_that_has_an_id_gets_another(self) -> None:
        async def test() -> None:
            node = FakeNode()
            first = await self.take(node)
            second = await self.take(node, producer_id=first.producer_id, producer_epoch=0)
            assert second.error_code == 0
            assert (second.producer_id, second.producer_epoch) != (first.producer_id, 0)

        run(test())

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"transactional_id": "tx"}, 53),
            ({"transactional_id": ""}, 42),
            ({"producer_id": 5}, 42),
            ({"producer_epoch": 5}, 42),
        ],
    )
    def test_refusals(self, fields: dict[str, Any], code: int) -> None:
        async def test() -> None:
            response = await self.take(FakeNode(), **fields)
            assert (response.error_code, response.producer_id, response.producer_epoch) == (
                code,
                -1,
                -1,
            )

        run(test())

    def test_while_there_are_no_ids_clients_come_again(self) -> None:
        async def test() -> None:
            node = FakeNode()
            node.outcomes = [Unknown(message="slow"), Refused(code=77, message="stale")]
            assert (await self.take(node)).error_code == 14
            assert (await self.take(node)).error_code == 14
            assert (await self.take(node)).error_code == 0
            unregistered = FakeNode()
            unregistered.image = replace(unregistered.image, nodes={})
            assert (await self.take(unregistered)).error_code == 14

        run(test())


class TestDescribeLogDirs:
    """Data directories."""

    def node(self) -> FakeNode:
        node = FakeNode()
        node.log_dirs = [
            LogDir(
                path="/one",
                online=True,
                total_bytes=100,
                free_bytes=40,
                partitions=[
                    (TopicPartition("a", PartitionId(0)), 7),
                    (TopicPartition("b", PartitionId(0)), 8),
                    (TopicPartition("a", PartitionId(1)), 9),
                ],
            ),
            LogDir(path="/two", online=False),
        ]
        return node

    def sizes(self, result: Any) -> dict[str, list[tuple[int, int]]]:
        return {
            topic.name: [(p.partition_index, p.partition_size) for p in topic.partitions]
            for topic in result.topics
        }

    def test_everything(self) -> None:
        async def test() -> None:
            response = await self.node().ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)
            one, two = response.results
            assert (one.log_dir, one.error_code) == ("/one", 0)
            assert (one.total_bytes, one.usable_bytes) == (100, 40)
            assert self.sizes(one) == {"a": [(0, 7), (1, 9)], "b": [(0, 8)]}
            assert (two.log_dir, two.error_code, two.topics) == ("/two", 56, ())

        run(test())

    def test_what_is_asked_for(self) -> None:
        async def test() -> None:
            topics = [{"topic": "a", "partitions": [1, 5]}, {"topic": "c", "partitions": [0]}]
            response = await self.node().ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=topics)
            assert self.sizes(response.results[0]) == {"a": [(1, 9)]}
            response = await self.node().ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[])
            assert self.sizes(response.results[0]) == {}

        run(test())


class TestBuilder:
    """Entities out of plain fields."""

    def test_a_version_takes_what_it_has(self) -> None:
        fields = {
            "error_code": 3,
            "error_message": "m",
            "throttle_time": 1500,
            "node_id": 1,
            "host": "h",
            "port": 2,
        }
        old = response_builder.build_response(ApiKey.FIND_COORDINATOR, 0, fields)
        assert (old.error_code, old.node_id, old.host, old.port) == (3, 1, "h", 2)
        new = response_builder.build_response(ApiKey.FIND_COORDINATOR, 1, fields)
        assert new.error_message == "m"
        assert new.throttle_time == datetime.timedelta(milliseconds=1500)

    def test_what_is_left_out_is_the_protocols_default(self) -> None:
        made = response_builder.build_response(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {})
        assert (made.topics, made.next_cursor) == ((), None)
        assert made.throttle_time == datetime.timedelta()
        with pytest.raises(TypeError, match="producer_"):
            response_builder.build_response(ApiKey.INIT_PRODUCER_ID, 0, {})

    def test_an_unknown_error_code_is_a_bug(self) -> None:
        with pytest.raises(KeyError):
            response_builder.build_response(ApiKey.API_VERSIONS, 0, {"error_code": 12345})

    def test_milliseconds(self) -> None:
        assert response_builder.milliseconds(datetime.timedelta(seconds=2, milliseconds=5)) == 2005
        assert response_builder.milliseconds(datetime.timedelta(milliseconds=-1)) == -1
