"""`dlogctl` against the handlers of a node in memory, for tests: the node, fixtures, results."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from dlog.types import NodeId
from dlog.wire import frame
from dlog.wire.apis import ApiKey
from dlog.wire.frame import FrameSplitter
from dlogctl.__main__ import main
from dlogd.metadata.commands.codec import AlterPartition, ClaimController
from dlogd.server.session import Session
from tests.fakes.server import FakeNode, FakeQuorum, new_topic


class World:
    """A node in memory, asked over a real socket; it stands for all nodes of its cluster."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.quorum = FakeQuorum()
        self.node = cast(FakeNode, None)
        self._answering: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "World":
        self.thread.start()
        self.do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def do(self, work: Any) -> Any:
        """Run something on the loop of the node."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.node = FakeNode(quorum=self.quorum, port=self.port)
        for node_id in (2, 3, 4):
            self.node.register(node_id, rack=f"r{node_id}")
        self.claim(1)
        topics = [
            new_topic("t", assignments=[(0, [1, 2, 3]), (1, [2, 3, 1]), (2, [1, 2, 3])]),
            new_topic("single", assignments=[(0, [2])]),
        ]
        for each in topics:
            await self.node.ask(ApiKey.CREATE_TOPICS, 7, topics=[each], timeout=1000)

    async def _stop(self) -> None:
        self._server.close()
        for task in self._answering:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        splitter = FrameSplitter()
        while data := await reader.read(1 << 16):
            for each in splitter.feed(memoryview(data)):
                header = frame.parse_request_header(each, 0, len(each))
                answer = self.node.dispatcher.respond(header, each, len(each), Session())
                writer.write(answer if isinstance(answer, bytes) else await answer)
        writer.close()

    def claim(self, node_id: int) -> None:
        """Let a node be the controller."""
        image = self.node.image
        self.node.apply(
            ClaimController(
                command_id=self.node.context.new_id(),
                node_id=NodeId(node_id),
                node_epoch=image.nodes[NodeId(node_id)].node_epoch,
                controller_epoch=image.controller.epoch,
            )
        )
        self.quorum.state = replace(self.quorum.state, leader_id=node_id)

    def lead_by_first(self, topic: str, number: int, isr: Sequence[int]) -> None:
        """Shrink an ISR as its leader does."""
        image = self.node.image
        found = image.topics[topic].partitions[number]
        self.node.apply(
            AlterPartition(
                command_id=self.node.context.new_id(),
                topic_id=image.topics[topic].topic_id,
                partition=number,
                node_id=found.leader,
                node_epoch=image.nodes[found.leader].node_epoch,
                leader_epoch=found.leader_epoch,
                partition_epoch=found.partition_epoch,
                isr=tuple((NodeId(n), image.nodes[NodeId(n)].node_epoch) for n in isr),
            )
        )


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Ctl = Callable[..., Result]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def ctl(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ctl:
    def run(line: str) -> Result:
        monkeypatch.setenv("DLOG_BOOTSTRAP", f"127.0.0.1:{world.port}")
        monkeypatch.setenv("XDG_CONFIG_HOME", "/no/contexts/here")
        code = main(["--timeout", "20", *line.split()])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run
