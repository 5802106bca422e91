"""`dlogctl` against a fake node with an HTTP endpoint, for tests: the node, fixtures, results."""

import asyncio
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from dlogctl.__main__ import main
from dlogd.status.http_heads import Request, Response
from dlogd.status.http_server import HttpServer
from tests.fakes.peer import PeerCluster, error, no_error, zero_time

NO_CONTEXTS = "/no/contexts/here"


class World:
    """Fake nodes, and an HTTP endpoint for the first of them, on a thread of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.nodes = PeerCluster()
        del self.nodes.peers[2]
        self.peer = self.nodes.peers[1]
        self.nodes.leaders = [1, 1]
        # As an older node, which cannot tell of fenced nodes, of the quorum, of what moves and of
        # who is eligible.
        for name in ("CLUSTER", "QUORUM", "TOPIC_PARTITIONS"):
            del self.peer.versions[ApiKey[f"DESCRIBE_{name}"]]
        del self.peer.versions[ApiKey.LIST_PARTITION_REASSIGNMENTS]
        self.status: dict[str, Any] = {"state": "active", "version": "0.1.0", "uptime_s": 7200.0}
        self.http_address = ""
        self.node_configs: dict[str, tuple[str, int]] = {}
        self.deleted: list[str] = []
        self.altered: list[tuple[str, int, str | None]] = []
        self.validated: list[bool] = []
        self.configs = {"retention.ms": ("5", 1), "cleanup.policy": ("delete", 5)}
        self.http = HttpServer(self.loop, {"/status": self.http_status})
        self._answer_all()

    async def http_status(self, _request: Request) -> Response:
        return Response(body=json.dumps(self.status).encode())

    async def start(self) -> None:
        await self.peer.start()
        self.http_address = f"127.0.0.1:{await self.http.start('127.0.0.1', 0)}"

    async def stop(self) -> None:
        self.peer.stop()
        await self.http.close()

    def _answer_all(self) -> None:
        self.peer.answers |= {
            ApiKey.CREATE_TOPICS: self.create,
            ApiKey.DELETE_TOPICS: self.delete,
            ApiKey.CREATE_PARTITIONS: self.grow,
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter,
            ApiKey.LIST_OFFSETS: self.list_offsets,
        }

    def create(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.validated.append(request.validate_only)
        name = request.topics[0].name
        result = module.CreatableTopicResult(
            name=name,
            topic_id=None,
            error_code=error(36 if name == "t" else 0),
            error_message="topic t exists" if name == "t" else None,
            configs=None,
        )
        return module.CreateTopicsResponse(throttle_time=zero_time(), topics=(result,))

    def delete(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.deleted.append(request.topics[0].name)
        result = module.DeletableTopicResult(name="t", topic_id=None, error_code=no_error())
        return module.DeleteTopicsResponse(throttle_time=zero_time(), responses=(result,))

    def grow(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.validated.append(request.validate_only)
        result = module.CreatePartitionsTopicResult(name="t", error_code=no_error())
        return module.CreatePartitionsResponse(throttle_time=zero_time(), results=(result,))

    def describe_configs(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        wanted = request.resources[0]
        node = {"http.address": (self.http_address, 4)} | self.node_configs
        configs = node if int(wanted.resource_type) == 4 else self.configs
        entries = tuple(
            module.DescribeConfigsResourceResult(
                name=name,
                value=value,
                read_only=False,
                config_source=source,
                is_sensitive=False,
                synonyms=(),
                documentation=f"About {name}.",
            )
            for name, (value, source) in configs.items()
        )
        result = module.DescribeConfigsResult(
            error_code=no_error(),
            error_message=None,
            resource_type=wanted.resource_type,
            resource_name=wanted.resource_name,
            configs=entries,
        )
        return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

    def alter(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        self.validated.append(request.validate_only)
        for each in request.resources[0].configs:
            self.altered.append((each.name, int(each.config_operation), each.value))
            if not request.validate_only:
                is_set = int(each.config_operation) == 0
                self.configs[each.name] = (each.value, 1) if is_set else ("0", 5)
        result = module.AlterConfigsResourceResponse(
            error_code=no_error(), error_message=None, resource_type=2, resource_name="t"
        )
        return module.IncrementalAlterConfigsResponse(
            throttle_time=zero_time(), responses=(result,)
        )

    def list_offsets(self, request: Any, module: Any, _header: RequestHeader) -> Any:
        topic = request.topics[0]
        answered = tuple(
            module.ListOffsetsPartitionResponse(
                partition_index=each.partition_index,
                error_code=no_error(),
                offset=10 if int(each.timestamp) == -2 else 99,
            )
            for each in topic.partitions
        )
        response = module.ListOffsetsTopicResponse(name=topic.name, partitions=answered)
        return module.ListOffsetsResponse(throttle_time=zero_time(), topics=(response,))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    thread = threading.Thread(target=world.loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(world.start(), world.loop).result(10)
    yield world
    asyncio.run_coroutine_threadsafe(world.stop(), world.loop).result(10)
    world.loop.call_soon_threadsafe(world.loop.stop)
    thread.join()
    world.loop.close()


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def ctl(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    def run(*arguments: str, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("DLOG_BOOTSTRAP", str(world.peer.address))
        monkeypatch.setenv("XDG_CONFIG_HOME", NO_CONTEXTS)
        code = main(["--timeout", "15", *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run


Ctl = Callable[..., Result]
NO_TOPIC = "there is no topic missing; see: dlogctl topic list"
