"""Nodes with logs on a thread of their own, and blocking consumers of them."""

import threading
from collections.abc import Iterator

import pytest

from dlog.client.blocking import Consumer
from dlog.client.cluster.loop_thread import LoopThread
from tests.fakes.bad_batches import miscounted, no_gzip
from tests.fakes.batches import batch
from tests.fakes.log_consumers import FIRST, OPTIONS, POLICY, SECOND
from tests.fakes.log_nodes import LogNodes


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
    """Give the nodes; no thread of a client may be left behind."""
    made = Nodes()
    yield made
    made.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("dlog-")], names


def consumer(nodes: Nodes, **changes: object) -> Consumer:
    """Return a consumer of the first two partitions."""
    arguments = {"partitions": [FIRST, SECOND], "policy": POLICY, "connection": OPTIONS}
    return Consumer(nodes.servers.bootstrap, **{**arguments, "max_wait_ms": 50, **changes})
