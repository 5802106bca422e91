"""A partition log: what is promised when, under each flush policy."""

import asyncio

import pytest

from dlogd.config.choices import FlushPolicy
from tests.fakes.faults import Latency
from tests.fakes.filled_logs import CONFIG, config, opened, quiet
from tests.fakes.logs import LogHost, append, run_virtual, settle, values_of


def test_appends_of_one_iteration_are_one_flush() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        promised: list[int] = []
        plog.on_promised = lambda log: promised.append(log.promised_offset)
        for _ in range(7):
            append(plog, b"x")
        assert (plog.log_end_offset, plog.promised_offset) == (7, 0)
        await plog.flush()
        assert promised == [7]
        assert plog.flushed_offset == plog.promised_offset == 7

    run_virtual(scenario)


def test_a_new_flush_starts_only_when_the_last_has_ended() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        host.machine.disks["/data"].latency = Latency(fixed=0.02)
        promised: list[int] = []
        plog.on_promised = lambda log: promised.append(log.promised_offset)
        append(plog, b"x")
        await asyncio.sleep(0.005)
        for _ in range(5):
            append(plog, b"x")
            await asyncio.sleep(0)
        assert promised == []
        await plog.flush()
        assert promised == [1, 6], "what waited went out together"
        assert not host.process.misuses

    run_virtual(scenario)


def test_always_is_on_the_disk_when_it_is_promised() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 10)
        append(plog, b"not promised")
        await settle()
        kept = plog.promised_offset
        plog = await host.power_cut(keep=0.0)
        assert plog.log_end_offset == kept == 11

    run_virtual(scenario)


@pytest.mark.parametrize("policy", [FlushPolicy.INTERVAL, FlushPolicy.NEVER])
def test_weak_policies_survive_the_process_but_not_the_power(policy: FlushPolicy) -> None:
    async def scenario() -> None:
        host = LogHost(config=config(flush_policy=policy, flush_interval_ms=60_000))
        plog = await opened(host)
        append(plog, b"x")
        await settle()
        assert (plog.promised_offset, plog.flushed_offset) == (1, 0)
        plog = await host.crash()
        assert plog.log_end_offset == plog.flushed_offset == 1, "recovery has made it durable"
        append(plog, b"x")
        await settle()
        plog = await host.power_cut(keep=0.0)
        assert plog.log_end_offset == 1

    run_virtual(scenario)


def test_interval_syncs_in_the_background_and_never_does_not() -> None:
    async def scenario() -> None:
        for policy, expected in ((FlushPolicy.INTERVAL, 1), (FlushPolicy.NEVER, 0)):
            host = LogHost(config=config(flush_policy=policy, flush_interval_ms=10))
            plog = await opened(host)
            append(plog, b"x")
            await asyncio.sleep(0.05)
            assert plog.flushed_offset == expected
            await plog.flush()
            assert plog.flushed_offset == 1

    run_virtual(scenario)


def test_large_weak_writes_go_through_the_engine() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(flush_policy=FlushPolicy.NEVER))
        plog = await opened(host)
        for _ in range(3):
            append(plog, b"x" * 60_000)
        await asyncio.sleep(0)
        assert plog.promised_offset == 0
        await settle()
        assert plog.promised_offset == 3
        assert len(await values_of(plog)) == 3

    run_virtual(scenario)


def test_a_policy_changes_with_the_next_segment() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(flush_policy=FlushPolicy.NEVER))
        plog = await opened(host)
        append(plog, b"weak")
        plog.reconfigure(CONFIG)
        assert [segment.durable for segment in plog.segments] == [False, True]
        append(plog, b"strong")
        await plog.flush()
        # A durable promise covers the weak records before it.
        plog = await host.power_cut(keep=0.0)
        assert [value for _, value in await values_of(plog)] == [b"weak", b"strong"]
        host.config = config(flush_policy=FlushPolicy.NEVER)
        plog.reconfigure(host.config)
        append(plog, b"weak again")
        await settle()
        assert (plog.promised_offset, plog.flushed_offset) == (3, 2)

    run_virtual(scenario)


def test_an_empty_segment_takes_over_a_new_policy_as_it_is() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        plog.reconfigure(config(flush_policy=FlushPolicy.NEVER))
        assert len(plog.segments) == 1
        append(plog, b"x")
        await quiet(plog)
        assert (plog.promised_offset, plog.flushed_offset) == (1, 0)

    run_virtual(scenario)
