"""The consumer for code without an event loop, against nodes on a thread of their own."""

import signal
import threading
from collections.abc import Iterator

import pytest

from dlog.client.blocking import Consumer
from dlog.client.cluster.loop_thread import LoopThread
from dlog.client.gaps import GapError
from dlog.client.starts import Timestamp
from dlog.errors import DlogError, UnknownTopicOrPartitionError
from tests.fakes.bad_batches import miscounted, no_gzip
from tests.fakes.batches import batch
from tests.fakes.log_nodes import LogNodes
from tests.unit.dlog.client.test_consumer import FIRST, OPTIONS, POLICY, SECOND, offsets


class Nodes:
    """Two nodes, three partitions with nine records each; changed from the test's thread."""

    def __init__(self) -> None:
        self.thread = LoopThread("nodes")
        self.thread.start()
        self.servers = self.thread.call(self._start)

    async def _start(self) -> LogNodes:
        servers = LogNodes(3, 2)
        for log in servers.logs:
            for number in range(3):
                log.append(batch(3 * number))
        return await servers.__aenter__()

    def append(self, partition: int) -> None:
        """Write three more records."""

        async def work() -> None:
            log = self.servers.logs[partition]
            log.append(batch(log.end))
            self.servers.notify()

        self.thread.call(work)

    def spoil(self, partition: int) -> None:
        """Put in place of a partition: 0 good, 1 to 2 and 3 to 5 cannot be decoded, 6 to 8 good."""
        log = self.servers.logs[partition]
        log.batches.clear()
        for data in (batch(0, 1), no_gzip(1, 2), miscounted(3, 2, said=3), batch(6)):
            log.append(data)

    def close(self) -> None:
        """Stop the nodes."""
        self.thread.call(self.servers.__aexit__)
        self.thread.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("dlog")], names


def consumer(nodes: Nodes, **changes: object) -> Consumer:
    """Return a consumer of the first two partitions."""
    arguments = {"partitions": [FIRST, SECOND], "policy": POLICY, "connection": OPTIONS}
    return Consumer(nodes.servers.bootstrap, **{**arguments, "max_wait_ms": 50, **changes})


def test_the_names_of_the_other_consumer(nodes: Nodes) -> None:
    with consumer(nodes) as reader:
        records = []
        while len(records) < 18:
            records += reader.poll(5)
        assert offsets(records) == offsets(records, 1) == list(range(9))
        assert reader.assignment == (FIRST, SECOND)
        assert reader.lag() == {FIRST: 0, SECOND: 0}
        assert reader.end_offsets() == {FIRST: 9, SECOND: 9}
        assert reader.start_offsets([("t", 0)]) == {FIRST: 0}
        assert reader.offsets_at({FIRST: Timestamp(1004)}) == {FIRST: 4}
        reader.seek(FIRST, -2)
        assert reader.position(FIRST) == 7
        reader.pause(FIRST)
        assert reader.paused == (FIRST,)
        nodes.append(1)
        assert offsets(reader.poll(timeout_ms=None), 1) == [9, 10, 11]
        reader.resume()
        assert reader.poll_arrow(timeout_ms=None).column("offset").to_pylist() == [7, 8]
        reader.assign([SECOND])
        assert reader.poll(timeout_ms=0) == []
        assert reader.counters.records == 23
        assert reader.client_counters.connections_opened == 2


def test_leaving_a_loop_loses_nothing(nodes: Nodes) -> None:
    with consumer(nodes, partitions=[FIRST]) as reader:
        for record in reader:
            assert reader.position(FIRST) == record.offset + 1
            if record.offset == 3:
                break
        assert offsets(reader.poll(2)) == [4, 5]
        assert offsets([record for _, record in zip(range(3), reader, strict=False)]) == [6, 7, 8]


def test_an_interrupted_poll_loses_nothing(nodes: Nodes) -> None:
    with consumer(nodes, partitions=[FIRST], start="latest") as reader:
        main = threading.main_thread()
        assert threading.current_thread() is main
        before = signal.signal(signal.SIGUSR1, _interrupt)
        try:
            timer = threading.Timer(0.05, signal.pthread_kill, [main.ident, signal.SIGUSR1])
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                reader.poll(timeout_ms=None)
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        nodes.append(0)
        assert offsets(reader.poll(timeout_ms=None)) == [9, 10, 11]


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def test_errors_come_out_of_the_call(nodes: Nodes) -> None:
    with pytest.raises(UnknownTopicOrPartitionError), consumer(nodes, partitions=[("t", 9)]):
        pass
    with consumer(nodes, start=99) as reader:
        with pytest.raises(GapError):
            reader.poll(timeout_ms=None)
        with pytest.raises(DlogError, match="started once"):
            reader.start()
    with pytest.raises(DlogError, match="closed"):
        reader.poll()
    reader.close()
    with pytest.raises(DlogError, match="not started"):
        consumer(nodes).poll()


def test_a_callback_that_calls_its_own_consumer_is_told(nodes: Nodes) -> None:
    """It runs on the thread that would have to do the work: it would wait for itself."""

    def seek(_gap: object) -> None:
        reader.seek(FIRST, "latest")

    reader = consumer(nodes, start=99, on_gap=seek)
    with reader, pytest.raises(DlogError, match="own thread"):
        reader.poll(timeout_ms=None)
