"""A power cut after a change of the flush policy: what was promised is there, the log is served."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from dlogd.config.choices import FlushPolicy
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.logs import LogHost, append_waiting, run_virtual, settle, values_of

STRONG = LogConfig(
    segment_bytes=1 << 20,
    preallocate_bytes=1 << 16,
    index_interval_bytes=256,
    flush_policy=FlushPolicy.ALWAYS,
)
WEAK = replace(STRONG, flush_policy=FlushPolicy.NEVER)


async def filled(host: LogHost, count: int = 8) -> PartitionLog:
    plog = await host.open()
    await fill(plog, count)
    await plog.flush()
    await settle()
    return plog


async def fill(plog: PartitionLog, count: int = 8) -> None:
    for _ in range(count):
        await append_waiting(plog, b"x" * 100)
    await settle()


async def reconfigure(host: LogHost, config: LogConfig) -> None:
    host.config = config
    host.log.reconfigure(config)
    await settle()


async def never_ends(*_: object) -> None:
    """Take the place of a job."""


async def empty_segment(host: LogHost) -> int:
    """An empty segment becomes a weak one."""
    plog = await filled(host)
    await plog.truncate_to(0)
    await reconfigure(host, WEAK)
    return 0


async def restarted(host: LogHost) -> int:
    """What was written under `always` goes on weakly after a restart."""
    await filled(host)
    host.config = WEAK
    await host.reopen()
    return 8


async def cut_active(host: LogHost) -> int:
    """The active segment was adopted, so it is weak already; a cut keeps it so."""
    await restarted(host)
    await host.log.truncate_to(5)
    return 5


async def cut_sealed(host: LogHost) -> int:
    """A sealed segment of `always` becomes the active one again, and a weak one."""
    plog = await filled(host)
    plog.roll()
    await fill(plog)
    await plog.flush()
    await settle()
    await reconfigure(host, WEAK)
    await plog.truncate_to(5)
    return 5


async def cut_rolled(host: LogHost) -> int:
    """A segment that is rolled but not sealed yet becomes the active one again."""
    plog = await filled(host)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogJobs, "_seal", never_ends)
        await reconfigure(host, WEAK)
    await plog.truncate_to(5)
    return 5


async def weak_at_first(host: LogHost) -> int:
    """Nothing of the weak segment is on disk, not even that it is one, when `always` begins."""
    host.config = WEAK
    await host.open()
    return 0


@pytest.mark.parametrize("later", [WEAK, STRONG])
@pytest.mark.parametrize(
    "begin", [empty_segment, restarted, cut_active, cut_sealed, cut_rolled, weak_at_first]
)
def test_a_weak_segment_is_known_as_one_after_a_power_cut(
    begin: Callable[[LogHost], Awaitable[int]], later: LogConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages may be lost although those of the next segment are not: that is no damage."""

    async def scenario() -> None:
        host = LogHost(config=STRONG)
        kept = await begin(host)
        await fill(host.log)
        # The flush of a large segment takes longer than all that follows.
        monkeypatch.setattr(LogJobs, "_seal", never_ends)
        host.log.roll()
        await fill(host.log)
        host.directory.open(file_name(host.log.active.base_offset)).sync()
        host.config = later
        plog = await host.power_cut(keep=0.0)
        assert plog.log_end_offset == kept
        assert [offset for offset, _ in await values_of(plog)] == list(range(kept))

    run_virtual(scenario)
