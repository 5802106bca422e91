"""Logs that a start set aside: deleted when nobody needs them and their time is over."""

import asyncio
import errno
import logging
import random
from uuid import UUID

import pytest

from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import CreateTopic, DeleteTopic
from dlogd.node.broker import Broker
from dlogd.node.stray_removal import why_not_needed
from dlogd.storage.directory.stray_directory import parse_stray_name
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault
from tests.fakes.logs import run_virtual
from tests.fakes.metadata_cluster import FakeCluster
from tests.fakes.two_disk_node import start_node

TIME_S = 1_200
ID = UUID("00112233-4455-4677-8899-aabbccddeeff")


def test_who_needs_a_log() -> None:
    cluster = FakeCluster(4)
    cluster.create("t", (2, 1, 3))
    (topic,) = cluster.image.topics.values()
    gone, here = (ID, 0), (topic.topic_id, 0)

    def why(key: tuple[UUID, int], node: int = 4) -> str | None:
        return why_not_needed(cluster.image, NodeId(node), key)  # type: ignore[arg-type]

    assert why(gone) == why(gone, 2) == "its topic was deleted"
    assert why(here) == "its replicas are on other nodes"
    assert why(here, 2) is None
    assert why((topic.topic_id, 1)) is None, "nobody knows that partition"
    for node in (1, 2, 3):
        cluster.fence(node)
    assert cluster.partition("t").leader == NO_NODE
    assert why(here) is None, "nobody leads: it may be needed yet"


@pytest.mark.parametrize(
    ("name", "is_log"),
    [
        (f"t-0.{ID}", True),
        (f"t-0.{ID}.2", True),
        (f"t.1-0.{ID}.17", True),
        (f"t-0.{ID}.x", False),
        (f"t-0.{ID}.2.2", False),
        ("something", False),
        ("t.2", False),
        (".2", False),
    ],
)
def test_names_of_strays(name: str, is_log: bool) -> None:
    assert (parse_stray_name(name) == (ID, 0)) == is_log


class Host:
    """A node alone on one disk."""

    def __init__(self) -> None:
        self.machine = Machine(random.Random(3), ("/data0",))

    async def start(self, retention: str) -> Broker:
        settings = f"data.directories: [/data0/dlog]\nstray.retention: {retention}\n"
        self.process, broker = await start_node(self.machine, settings)
        return broker

    def names(self, folder: str) -> list[str]:
        return self.process.open_directory(f"/data0/dlog/{folder}").names()


async def two_strays(host: Host) -> str:
    """Leave a log without a topic and something that is no log; return the log's name."""
    broker = await host.start("20min")
    assert broker.store is not None and broker.replicas is not None
    command = CreateTopic(
        command_id=UUID(int=1), name="t", topic_id=ID, assignments=((NodeId(1),),), configs={}
    )
    await broker.store.propose(command, 1 << 60)
    await broker.replicas.await_partitions(("t",))
    (name,) = host.names("topics")
    topics = host.process.open_directory("/data0/dlog/topics")
    topics.directory("no log", create=True)
    topics.directory("kept-0.00112233-4455-4677-8899-aabbccddee00", create=True)
    topics.sync()
    # The topic goes while nobody deletes its log.
    host.machine.disks["/data0"].faults.append(DiskFault(("rename",), errno=errno.EMFILE))
    await broker.store.propose(DeleteTopic(command_id=UUID(int=2), topic_id=ID), 1 << 60)
    host.machine.crash()
    host.machine.heal()
    return name


def test_strays_go_when_their_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        host = Host()
        name = await two_strays(host)
        broker = await host.start("20min")
        assert name in host.names("stray") and host.names("topics") == []
        await asyncio.sleep(TIME_S * 0.99)
        assert name in host.names("stray")
        disk = host.machine.disks["/data0"]
        disk.faults.append(DiskFault(("remove_tree", "unlink"), errno=errno.EMFILE))
        await asyncio.sleep(TIME_S * 0.3)
        assert name in host.names("stray")
        disk.heal()
        await asyncio.sleep(TIME_S * 0.3)
        assert host.names("stray") == ["no log"]
        await broker.stop()

    with caplog.at_level(logging.INFO):
        run_virtual(scenario)
    deleted = [line for line in caplog.messages if line.startswith("Deleted a stray log")]
    assert len(deleted) == 2
    assert all("reason='its topic was deleted'" in line for line in deleted)
    assert any("Could not delete stray logs" in line for line in caplog.messages)


def test_strays_are_kept_for_ever_when_told_so() -> None:
    async def scenario() -> None:
        host = Host()
        name = await two_strays(host)
        broker = await host.start("-1")
        await asyncio.sleep(TIME_S * 3)
        assert name in host.names("stray")
        await broker.stop()

    run_virtual(scenario)
