"""A partition log with many small segments that wait to be written."""

import asyncio
import errno

import pytest

from dlogd.config.choices import FlushPolicy
from dlogd.storage.log import flusher
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.faults import DiskFault
from tests.fakes.logs import LogHost, append, run, settle, values_of

SEGMENT_COUNT = 1200


@pytest.mark.parametrize("policy", [FlushPolicy.NEVER, FlushPolicy.INTERVAL])
def test_many_small_segments_wait_for_space_and_are_written(
    policy: FlushPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "FULL_DISK_RETRY_SECONDS", 0.01)

    async def scenario() -> None:
        config = LogConfig(segment_bytes=60, preallocate_bytes=0, flush_policy=policy)
        host = LogHost(config=config, pool_bytes=64 << 20)
        plog = await host.open()
        append(plog, b"first")
        await plog.flush()
        await settle()
        promised: list[int] = []
        plog.on_promised = lambda log: promised.append(log.promised_offset)
        disk = host.machine.disks["/data"]
        for _ in range(SEGMENT_COUNT):
            assert append(plog, b"x") is not None
        disk.faults.append(DiskFault(("write",), errno.ENOSPC, path_part=".log"))
        while any(segment.file is None for segment in plog.segments):
            await asyncio.sleep(0.01)
        assert plog.blocked is not None and plog.promised_offset == 1
        disk.heal()
        async with asyncio.timeout(50):
            while plog.blocked is not None:  # until the next try, a flush is refused
                await asyncio.sleep(0.01)
            await plog.flush()
        assert plog.failed is None and promised == sorted(promised)
        assert plog.promised_offset == plog.flushed_offset == SEGMENT_COUNT + 1
        assert len(await values_of(plog)) == SEGMENT_COUNT + 1

    run(scenario)
