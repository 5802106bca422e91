"""The consumer for code without an event loop, against nodes on a thread of their own."""

import signal
import threading

import pytest

from dlog.client.gaps import GapError
from dlog.client.starts import Timestamp
from dlog.errors import DlogError, UnknownTopicOrPartitionError
from tests.fakes.log_consumers import FIRST, SECOND, offsets
from tests.fakes.threaded_nodes import Nodes, consumer
from tests.fakes.threaded_nodes import nodes as nodes


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
