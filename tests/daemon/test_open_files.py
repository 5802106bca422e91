"""A real `dlogd` without descriptors to spare: it says so, refuses, and goes on later."""

import os
import resource
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlog.batch.records import Record, encode
from dlog.client.blocking import BlockingClient
from dlog.client.cluster.partition_calls import produce
from dlog.errors import WireError
from dlog.transport import Address
from dlogd.__main__ import _check_open_files
from tests.daemon import few_files
from tests.daemon.process import daemon

PARTITION_COUNT = 12
SPARE_COUNT = 8


def test_a_small_limit_is_told(caplog: pytest.LogCaptureFixture) -> None:
    _check_open_files(1 << 20, 10_000, 1000)
    _check_open_files(resource.RLIM_INFINITY, 10_000, 1000)
    assert not caplog.messages
    _check_open_files(4096, 10_000, 7)
    assert len(caplog.messages) == 1 and "limit=4096" in caplog.messages[0]


def test_logs_wait_for_descriptors_and_go_on(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        node.start()
        assert node.process is not None
        pid = node.process.pid
        with BlockingClient([Address.parse(node.status()["listeners"][0])]) as client:
            client.run(lambda: client.admin.create_topic("t", partitions=PARTITION_COUNT))

            def send(partition: int) -> int:
                async def work() -> int:
                    leader = await client.cluster.leader("t", partition)
                    record = Record(key=None, value=b"x", headers=(), timestamp_ms=1, offset=0)
                    produced = await produce(leader, "t", partition, encode([record]))
                    assert produced is not None
                    return produced.base_offset

                return client.run(work)

            acknowledged = [0] * PARTITION_COUNT
            assert send(0) == 0
            acknowledged[0] = 1
            old, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + SPARE_COUNT, hard))
            refused = 0
            for _ in range(2):
                for partition in range(PARTITION_COUNT):
                    try:
                        assert send(partition) >= acknowledged[partition]
                        acknowledged[partition] += 1
                    except WireError as error:
                        refused += 1
                        assert error.retriable, error
            assert refused, "the limit was felt"
            assert "waiting for descriptors" in node.log
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (old, hard))
            for partition in range(PARTITION_COUNT):
                for _ in range(50):
                    try:
                        offset = send(partition)
                        break
                    except WireError as error:
                        assert error.retriable, error
                        time.sleep(0.1)
                else:
                    pytest.fail(f"partition {partition} does not go on")
                assert offset >= acknowledged[partition]
        assert "Log failed" not in node.log
        assert node.stop() == 0
        assert " ERROR " not in node.log


def test_logs_leave_descriptors_to_clients(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        node.module = few_files.__name__
        node.start()
        assert node.process is not None
        address = Address.parse(node.status()["listeners"][0])
        with ExitStack() as clients:
            first = clients.enter_context(BlockingClient([address]))
            first.run(lambda: first.admin.create_topic("t", partitions=few_files.FILES_MAX))
            deadline = time.monotonic() + 30
            while "Too many open files" not in node.log:
                assert time.monotonic() < deadline, node.log[-3000:]
                time.sleep(0.1)
            used = len(os.listdir(f"/proc/{node.process.pid}/fd"))
            assert used > few_files.FILES_MAX // 2, "logs took what there is"
            for _ in range(20):
                another = clients.enter_context(BlockingClient([address]))
                assert "t" in another.run(another.admin.describe_topics).topics
        assert "Traceback" not in node.log and "Log failed" not in node.log
        assert node.stop() == 0
