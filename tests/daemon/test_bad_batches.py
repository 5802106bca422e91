"""A batch that no reader can decode, in a real node: what clients and `dlogctl` make of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.client.bad_batches import UndecodableBatchError
from dlog.client.blocking import Consumer
from dlog.client.cluster.partition_calls import produce
from tests.daemon.commands import bootstrap_of, run
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import client_of
from tests.fakes.bad_batches import no_gzip
from tests.fakes.batches import batch


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Start a node with a topic `t` of two partitions, of which the first has a bad batch."""
    home: Path = tmp_path_factory.mktemp("node")
    with daemon(home) as process:
        process.start()
        assert run(process, "topic", "create", "t", "-p", "2")[0] == 0
        with client_of(process) as client:

            async def write() -> None:
                leader = await client.cluster.leader("t", 0)
                for data in (batch(0, 1), no_gzip(0, 2), batch(0)):
                    assert await produce(leader, "t", 0, data) is not None
                await produce(leader, "t", 1, batch(0))

            client.run(write)
        yield process


def test_a_consumer_gives_what_is_before_and_goes_on_behind(node: DaemonProcess) -> None:
    with Consumer(bootstrap_of(node), partitions=[("t", 0)]) as consumer:
        assert [each.offset for each in consumer.poll(timeout_ms=5_000)] == [0]
        with pytest.raises(UndecodableBatchError, match=r"t-0: .* offset 1: gzip.* offset 3"):
            consumer.poll()
        assert consumer.position(("t", 0)) == 1
        consumer.seek(("t", 0), 3)
        assert [each.offset for each in consumer.poll(timeout_ms=5_000)] == [3, 4, 5]


def test_the_command_writes_all_else_and_says_how_to_go_on(node: DaemonProcess) -> None:
    code, out, err = run(node, "consume", "t", "--place")
    assert code == 1
    places = [line.split("\t")[:2] for line in out.splitlines()]
    assert sorted(places) == [["0", "0"], ["1", "0"], ["1", "1"], ["1", "2"]]
    assert err.startswith("dlogctl: t-0: cannot decode the batch at offset 1: gzip")
    command = err.rpartition("dlogctl ")[2].split()
    assert command == ["consume", "t", "-p", "0", "--from", "3"]
    assert run(node, *command) == (0, "v0\nv1\nv2\n", "")
    assert run(node, "consume", "t", "-p", "0", "-n", "1") == (0, "v0\n", "")
    assert run(node, "consume", "t", "-p", "0", "--until", "1") == (0, "v0\n", "")
