"""A node's partitions on real files, with an image that the test changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from dlog.batch.records import Record, encode
from dlog.types import NodeId
from dlogd.config.schema import Config, build
from dlogd.config.units import DiskReserve
from dlogd.metadata.commands.codec import (
    AlterConfigs,
    Command,
    ConfigChange,
    CreateTopic,
    DeleteTopic,
    RegisterNode,
)
from dlogd.metadata.commands.codec import encode as encode_command
from dlogd.metadata.machine import apply
from dlogd.metadata.machine.image_changes import with_topics
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import Applied, ClusterImage, NodeAddress
from dlogd.replication.partition.partition import Partition
from dlogd.replication.replica_manager import Placement, ReplicaManager
from dlogd.runtime.clock import SystemClock
from dlogd.storage.directory.log_directory import StorageSettings
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.io.thread_engine import ThreadEngine
from dlogd.storage.log_manager import LogManager
from tests.fakes.logs import services_for
from tests.fakes.randomness import SeededRandomness

NODE = NodeId(1)


class Host:
    """A node's partitions on real files, with an image that the test changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Config = build({})
        self.image = self.followed = ClusterImage()
        self.number = 0
        self.manager: ReplicaManager
        self.logs: LogManager
        self.do(
            RegisterNode(
                command_id=self.new_id(),
                cluster_id="c",
                node_id=NODE,
                directory_ids=(),
                addresses=(NodeAddress(listener="clients", host="h", port=1),),
                rack=None,
                version="1",
            )
        )

    def new_id(self) -> UUID:
        self.number += 1
        return UUID(int=self.number)

    def do(self, command: Command) -> None:
        """Change the image, without telling the manager."""
        self.image, outcome = apply.apply(self.image, encode_command(command))
        assert isinstance(outcome, Applied), outcome

    def create(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        topic_id = self.new_id()
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.do(
            CreateTopic(
                command_id=self.new_id(),
                name=name,
                topic_id=topic_id,
                assignments=((NODE,),) * partitions,
                configs=named,
            )
        )
        return topic_id

    def delete(self, topic_id: UUID) -> None:
        self.do(DeleteTopic(command_id=self.new_id(), topic_id=topic_id))

    def place(self, topic_id: UUID, *nodes: int) -> None:
        """Move all replicas of a topic."""
        topic = self.image.topics_by_id[topic_id]
        moved = [
            replace(each, replicas=tuple(map(NodeId, nodes)), isr=tuple(map(NodeId, nodes)))
            for each in topic.partitions
        ]
        self.image = with_topics(self.image, [replace(topic, partitions=tuple(moved))])
        self.image = self.image.having(version=self.image.version + 1)

    def alter(self, topic_id: UUID | None, key: str, value: str | None) -> None:
        changes = (ConfigChange(key=key, value=value),)
        self.do(AlterConfigs(command_id=self.new_id(), topic_id=topic_id, changes=changes))

    def tell(self) -> None:
        """Tell the manager of the image."""
        delta = between(self.followed, self.image)
        self.followed = self.image
        self.manager.on_image(self.image, delta)

    async def follow(self) -> None:
        """Tell the manager of the image and wait until it has followed."""
        self.tell()
        await self.manager.await_partitions(())

    @asynccontextmanager
    async def running(
        self, *, clean: bool = True, registering: Callable[[], None] = lambda: None
    ) -> AsyncIterator[ReplicaManager]:
        """Start the node; stop it at the end, in order or not.

        `registering` is called between recovery and start.
        """
        loop = asyncio.get_running_loop()
        engine = ThreadEngine(loop)
        services = services_for(engine, pool_bytes=4 << 20)
        directory = PosixDirectory(str(self.folder))
        settings = StorageSettings(reserve=DiskReserve(bytes=0))
        self.logs = LogManager(
            [directory], services=services, entropy=SeededRandomness(1).entropy, settings=settings
        )
        await self.logs.claim(NODE, "c")
        place = Placement(node_id=NODE, loop=loop, clock=SystemClock())
        self.manager = ReplicaManager(self.logs, self.config, place)
        await self.manager.recover(self.image)
        await self.logs.begin()
        registering()
        await self.manager.start(self.image)
        try:
            yield self.manager
        finally:
            if clean:
                await self.manager.stop()
                await self.logs.close()
            else:
                await self.manager._tasks.close()
                for plog in self.manager.logs():
                    await plog.close(clean=False)
                await self.logs._tasks.close()
                for home in self.logs.homes:
                    home.directory.release()
            await services.tasks.close()
            engine.close()


def check(scenario: Callable[[Host], Awaitable[None]], folder: Path) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(Host(folder)), 30)

    asyncio.run(bounded())


async def append(partition: Partition, value: bytes, **fields: Any) -> int:
    data = bytearray(encode([Record(value=value, timestamp_ms=1000)], **fields))
    appended = partition.append_as_leader(data, 0, len(data), -1)
    assert appended is not None
    await partition.log.flush()
    return appended[0]
