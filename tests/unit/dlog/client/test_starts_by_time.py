"""Starting at a time while records are written: those written meanwhile are read, none is lost."""

from typing import Any

import pytest

from dlog.client.admin import Admin
from dlog.client.starts import Timestamp
from tests.fakes.batches import batch
from tests.fakes.log_consumers import FIRST, OPTIONS, POLICY, SECOND, consumer, offsets, read, run
from tests.fakes.log_nodes import LogNodes

YOUNGER_THAN_ALL = Timestamp(1_000_000)


def append_during_search(servers: LogNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each partition get three records once it was searched by time."""
    find = servers._offset_at
    pending = set(map(id, servers.logs))

    def offset_at(log: Any, timestamp: int, isolation: int) -> int:
        offset = find(log, timestamp, isolation)
        if timestamp >= 0 and id(log) in pending:
            pending.discard(id(log))
            log.append(batch(log.end))
        return offset

    monkeypatch.setattr(servers, "_offset_at", offset_at)


def test_a_consumer_reads_what_is_written_during_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(servers: LogNodes) -> None:
        append_during_search(servers, monkeypatch)
        async with consumer(servers, start=YOUNGER_THAN_ALL) as reader:
            assert offsets(await read(reader, 3)) == [9, 10, 11]

    run(work)


def test_a_trim_by_time_ends_before_what_is_written_during_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(servers: LogNodes) -> None:
        append_during_search(servers, monkeypatch)
        admin = Admin(servers.bootstrap, policy=POLICY, connection=OPTIONS)
        async with admin:
            found = await admin.find_offsets(dict.fromkeys((FIRST, SECOND), YOUNGER_THAN_ALL))
            assert found == {FIRST: 9, SECOND: 9}

    run(work, partitions=2)
