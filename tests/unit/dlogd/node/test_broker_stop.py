"""The stop of a node in virtual time: bounded by shutdown.timeout, whatever its disks do."""

import asyncio
import errno
import logging
from typing import Any, cast
from unittest import mock

import pytest

from dlogd.replication.partition.producer_snapshots import SNAPSHOT
from tests.fakes.faults import DiskFault
from tests.fakes.logs import run_virtual
from tests.fakes.two_disk_node import TIMEOUT_S, Host, append


def snapshots(files: set[str]) -> set[str]:
    return {name.split("/")[1] for name in files if name.endswith(f"/{SNAPSHOT}")}


def disk_of(host: Host, number: int) -> str:
    assert host.broker.logs is not None
    log = host.partition(number).log
    (home,) = [each for each in host.broker.logs.homes if log in each.logs.values()]
    return home.path.split("/")[1]


def test_a_stop_in_order_takes_no_time() -> None:
    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(4)
        took, problem = await host.stop()
        assert (took < 1, problem, host.broker.hanging) == (True, "", [])
        files = host.files()
        assert snapshots(files) == {"t-0", "t-1", "t-2", "t-3"}
        assert {"data0/clean-shutdown", "data1/clean-shutdown"} <= files

    run_virtual(scenario)


def test_one_full_partition_does_not_keep_the_others_from_their_snapshots(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = 150  # more than are written at once

    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(count)
        fault = DiskFault(("write", "create", "rename"), errno.ENOSPC, path_part="/t-7.")
        host.machine.disks[f"/{disk_of(host, 7)}"].faults.append(fault)
        append(host.partition(7))
        append(host.partition(8))
        took, problem = await host.stop()
        assert took < TIMEOUT_S / 2
        assert problem == "not all is on the disk of t-7"
        assert host.broker.hanging == []
        files = host.files()
        assert snapshots(files) == {f"t-{number}" for number in range(count) if number != 7}
        assert {"data0/clean-shutdown", "data1/clean-shutdown"} <= files
        # What was acknowledged is there, and all the others need no recovery.
        host.machine.heal()
        await host.start()
        assert host.partition(7).log.log_end_offset in (1, 2)  # a write may fail after its bytes
        assert host.partition(8).log.log_end_offset == 2
        await host.stop()

    with caplog.at_level(logging.WARNING):
        run_virtual(scenario)
    assert sum("Could not write producer snapshot" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("stuck", ["data0", "data1"])
@pytest.mark.parametrize("before", [True, False], ids=["hangs before", "hangs while stopping"])
def test_a_disk_that_hangs_does_not_hold_up_the_stop(before: bool, stuck: str) -> None:
    """Neither its own node, nor what is on the other disk."""

    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(6)
        where = {number: disk_of(host, number) for number in range(6)}
        if before:
            host.machine.disks[f"/{stuck}"].stick()
        for number in range(6):
            append(host.partition(number))
        if before:
            await asyncio.sleep(0.1)
        else:
            asyncio.get_running_loop().call_soon(host.machine.disks[f"/{stuck}"].stick)
        took, problem = await host.stop()
        assert took <= TIMEOUT_S + 0.01
        on_stuck = [f"t-{number}" for number, disk in where.items() if disk == stuck]
        assert 0 < len(on_stuck) < 6
        assert set(on_stuck) <= set(host.broker.hanging)
        for name in on_stuck:
            assert name in problem.split("; ")[0]
        assert problem.startswith("after shutdown.timeout=20000ms still not ended: ")
        assert problem.endswith(f"; not all is on the disk of {', '.join(on_stuck)}")
        (other,) = {"data0", "data1"} - {stuck}
        files = host.files()
        assert f"{other}/clean-shutdown" in files
        assert f"{stuck}/clean-shutdown" not in files
        host.machine.heal()
        await host.start()
        for number, disk in where.items():
            assert host.partition(number).log.log_end_offset >= (1 if disk == stuck else 2)
        assert (await host.stop())[1] == ""

    run_virtual(scenario)


def test_a_disk_that_goes_on_in_time_ends_in_order() -> None:
    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(4)
        disk = host.machine.disks["/data0"]
        disk.stick()
        asyncio.get_running_loop().call_later(TIMEOUT_S * 0.8, disk.unstick)
        took, problem = await host.stop()
        assert TIMEOUT_S * 0.8 <= took < TIMEOUT_S * 0.9
        assert (problem, host.broker.hanging) == ("", [])
        assert {"data0/clean-shutdown", "data1/clean-shutdown"} <= host.files()

    run_virtual(scenario)


class Lonely:
    """What a node of a cluster has whose quorum went away while it took its leave."""

    async def take_leave(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    def has_lease(self) -> bool:
        return False

    async def stop(self) -> None:
        pass


def test_metadata_that_close_late_are_closed() -> None:
    async def scenario() -> Any:
        host = Host()
        await host.start()
        host.broker.clustering = cast("Any", Lonely())
        store = host.broker.store
        assert store is not None
        close = store.close

        async def close_slowly() -> None:
            await asyncio.sleep(TIMEOUT_S / 4)
            await close()

        with mock.patch.object(store, "close", close_slowly):
            took, problem = await host.stop()
        assert took < TIMEOUT_S * 0.6
        assert (problem, host.broker.hanging) == ("", [])

    run_virtual(scenario)


def test_metadata_that_hangs_is_named() -> None:
    async def scenario() -> Any:
        host = Host()
        await host.start()
        host.machine.disks["/data0"].stick()
        took, problem = await host.stop()
        assert took <= TIMEOUT_S + 0.01
        assert "metadata" in host.broker.hanging and "metadata" in problem
        host.machine.heal()
        await asyncio.sleep(1)  # what hung ends

    run_virtual(scenario)
