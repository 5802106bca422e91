"""Requests of clients take no place from what a node does by itself."""

import asyncio
from unittest import mock

import pytest

from dlogd.runtime.tasks import Tasks
from dlogd.server.router import RequestRouter
from tests.fakes.logs import run_virtual
from tests.fakes.two_disk_node import Host, append


def test_requests_that_wait_however_many_keep_no_log_from_its_work() -> None:
    """Without a task a new segment is not prepared, and what was copied to it is not counted."""

    async def scenario() -> None:
        host = Host()
        with mock.patch.dict(Tasks.__init__.__kwdefaults__ or {}, task_count_max=40):
            await host.start()
        await host.create(1)
        router = host.broker.listeners[0].router
        assert isinstance(router, RequestRouter)
        requests = router._tasks
        with pytest.raises(RuntimeError, match="full"):
            while True:
                requests.spawn("request", asyncio.Event().wait())
        log = host.partition(0).log
        for end in range(2, 12):
            log.roll()
            append(host.partition(0))
            assert log.log_end_offset == end
        await log.flush()
        assert (log.flushed_offset, len(requests)) == (11, 40)
        took_s, problem = await host.stop()
        assert (took_s < 1, problem, len(requests)) == (True, "", 0)

    run_virtual(scenario)
