"""The log manager: start, restart, crash, strays, second copies."""

import asyncio
import errno
import os
from dataclasses import replace

import pytest

from dlog.errors import ConfigError, KafkaStorageError
from dlog.types import NodeId, Offset
from dlogd.config.choices import FlushPolicy
from dlogd.node.service import exit_code_of
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.directory.replaced_marker import REPLACES
from tests.fakes.faults import DiskFault
from tests.fakes.logs import append, run, values_of
from tests.fakes.manager import CONFIG, NODE, TOPIC_ID, ManagerHost, key, partition, wanted

# -- start and stop


def test_a_new_cluster_begins_and_is_found_again() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        manager = await host.start()
        cluster_id, directory_ids = manager.cluster_id, manager.directory_ids
        assert len(cluster_id) == 22 and len(set(directory_ids)) == 2
        await host.create_with(0, b"a", b"b")
        await host.stop()
        for _ in range(2):
            manager = await host.start(0, cluster_id=cluster_id)
            assert (manager.cluster_id, manager.directory_ids) == (cluster_id, directory_ids)
            assert await values_of(manager.logs[key(0)]) == [(0, b"a"), (1, b"b")]
            assert manager.progress.finished and not manager.failures
            await host.stop()

    run(scenario)


def test_a_given_cluster_id_is_taken_and_another_refused() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        manager = await host.start(cluster_id="mine")
        assert manager.cluster_id == "mine"
        await host.stop()
        with pytest.raises(ConfigError, match="belongs to cluster mine") as raised:
            await host.boot().claim(NODE, "other")
        assert len(raised.value.problems) == 2
        with pytest.raises(ConfigError, match="belongs to node 1, this is node 2"):
            await host.boot().claim(NodeId(2), "mine")
        assert await host.boot().claim(NODE, "mine") == "mine"

    run(scenario)


def test_a_second_daemon_is_refused_and_the_first_goes_on() -> None:
    async def scenario() -> None:
        host = ManagerHost()
        await host.start()
        plog = await host.create_with(0, b"a")
        services, first = host.services, host.manager
        with pytest.raises(ConfigError, match="in use by another process") as raised:
            await host.boot().claim(NODE, None)
        assert exit_code_of(raised.value) == os.EX_TEMPFAIL
        append(plog, b"b")
        await plog.flush()
        host.services, host.manager = services, first
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("claims", [False, True])
def test_a_start_that_was_refused_leaves_nothing_behind(claims: bool) -> None:
    """Its stop must not write a clean-shutdown marker into a directory of somebody else."""

    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        if claims:
            await host.crash()
        before = host.machine.boot().open_directory("/disk0/dlog").names()
        manager = host.boot()
        if claims:
            await manager.claim(NODE, None)
        else:
            with pytest.raises(ConfigError):
                await manager.claim(NODE, None)
        await manager.close()
        found = host.machine.boot().open_directory("/disk0/dlog").names()
        assert found == before and "clean-shutdown" not in found

    run(scenario)


def test_high_watermarks_of_logs_out_of_service_are_kept() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a", b"b")
        await host.create_with(1, b"c")
        await host.stop()
        manager = await host.start(0, 1)
        manager.logs[key(0)].fail(OSError(errno.EMFILE, "Too many open files"))
        await host.stop()
        manager = await host.start(0, 1)
        assert manager.stored_high_watermark(manager.logs[key(0)]) == 2
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("power_cut", [False, True])
def test_what_was_flushed_survives(power_cut: bool) -> None:
    async def scenario() -> None:
        host = ManagerHost()
        await host.start()
        for number in range(10):
            await host.create_with(number, b"%d" % number, b"more")
        await host.crash(power_cut=power_cut)
        manager = await host.start(*range(10))
        assert not manager.failures and len(manager.logs) == 10
        for number in range(10):
            values = await values_of(manager.logs[key(number)])
            assert values == [(0, b"%d" % number), (1, b"more")]
        done = [(home.logs_done, home.logs_failed) for home in manager.progress.homes]
        assert sum(count for count, _ in done) == 10
        assert sum(home.scanned_bytes for home in manager.progress.homes) > 0
        assert host.services.metrics.recovered_bytes_total > 0
        await host.stop()

    run(scenario)


def test_the_marker_is_written_last_and_removed_first() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        root = host.process.open_directory("/disk0/dlog")
        assert not root.exists("clean-shutdown")
        await host.stop()
        assert host.machine.boot().open_directory("/disk0/dlog").exists("clean-shutdown")
        manager = await host.start(0)
        assert manager.homes[0].clean_ends
        assert not host.process.open_directory("/disk0/dlog").exists("clean-shutdown")
        await host.crash()
        assert not (await host.start(0)).homes[0].clean_ends

    run(scenario)


def test_a_log_that_ends_elsewhere_than_the_marker_says_is_recovered() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        await host.stop()
        directory = host.boot().homes[0].directory
        directory.claim()
        name = f"t-0.{TOPIC_ID}"
        directory.save_clean_shutdown({name: Offset(0)})
        host.machine.crash()
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"a")]
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("policy", [FlushPolicy.ALWAYS, FlushPolicy.NEVER])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("names", [[".log"], [".log", ".idx", ".tdx"]])
def test_a_log_without_its_last_segment_is_out_of_service(
    policy: FlushPolicy, is_clean: bool, names: list[str]
) -> None:
    """Else its offsets would be given to other records. After a weak policy nobody can know."""

    async def scenario() -> None:
        host = ManagerHost(1)
        host.config = replace(CONFIG, flush_policy=policy, segment_ms=1 << 60)
        await host.start()
        await host.create_with(0, b"a", b"b")
        await host.manager._upkeep._save_all()
        await (host.stop() if is_clean else host.crash())
        log_directory = host.machine.boot().open_directory(f"/disk0/dlog/topics/t-0.{TOPIC_ID}")
        for suffix in names:
            log_directory.unlink(f"{0:020}{suffix}")
        manager = await host.start(0)
        if is_clean or policy is FlushPolicy.ALWAYS:
            with pytest.raises(KafkaStorageError, match="ends at offset 0, but held all up to 2"):
                await host.create(0)
            assert key(0) not in manager.logs
        else:
            assert manager.logs[key(0)].log_end_offset == 0
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_directory_that_is_gone_is_missed_once(
    is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """To move it away is how an operator gives up a copy: the log begins anew, not in silence."""

    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a", b"b")
        await host.manager._upkeep._save_all()
        await (host.stop() if is_clean else host.crash())
        name = f"t-0.{TOPIC_ID}"
        host.machine.boot().open_directory("/disk0/dlog/topics").remove_tree(name)
        await host.start(0)
        assert "Log directory is missing partition=t-0" in caplog.text
        assert "records are fetched again from other replicas" in caplog.text
        caplog.clear()
        await host.create_with(0, b"new")
        await host.crash()
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"new")]
        assert "Log directory is missing" not in caplog.text
        await host.stop()

    run(scenario)


def test_logs_without_metadata_are_not_set_aside() -> None:
    """A wrong metadata.directory would make strays of all of them."""

    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"a")
        await host.stop()
        with pytest.raises(ConfigError, match="but there is no metadata"):
            await host.boot().claim(NODE, None, has_metadata=False)
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"a")]
        await host.stop()
        empty = ManagerHost(1)
        await empty.boot().claim(NODE, None, has_metadata=False)

    run(scenario)


# -- strays and duplicates


def test_a_log_without_a_topic_is_set_aside_and_kept() -> None:
    async def scenario() -> None:
        host = ManagerHost(1)
        await host.start()
        await host.create_with(0, b"old")
        await host.create_with(1, b"kept")
        await host.stop()
        manager = await host.start(1)
        assert list(manager.logs) == [key(1)]
        plog = await host.create(0)
        assert plog.log_end_offset == 0
        stray = host.process.open_directory("/disk0/dlog/stray")
        assert stray.names() == [f"t-0.{TOPIC_ID}"]
        assert stray.directory(stray.names()[0]).names()
        await host.stop()

    run(scenario)


def test_an_empty_second_copy_is_set_aside_but_two_with_records_stop_the_start() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        await host.start()
        await host.create_with(0, b"a")
        other = next(home for home in host.manager.homes if key(0) not in home.names)
        other.directory.make_log_directories([f"t-0.{TOPIC_ID}"])
        await host.stop()
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"a")]
        other = next(home for home in manager.homes if key(0) not in home.names)
        other.directory.make_log_directories([f"t-0.{TOPIC_ID}"])
        directory = other.directory.topics.directory(f"t-0.{TOPIC_ID}")
        file = directory.open("00000000000000000000.log", create=True)
        file.pwrite(b"records", 0)
        file.close()
        await host.stop()
        host.boot()
        await host.manager.claim(NODE, None)
        with pytest.raises(ConfigError, match="both with records"):
            await host.manager.open(wanted(0))

    run(scenario)


async def two_copies() -> tuple[ManagerHost, LogDirectory, LogDirectory]:
    """Leave a log in two directories; return the one that failed before and the one in use."""
    host = ManagerHost(2)
    await host.start()
    await host.create_with(0, b"old", b"older")
    failed = host.home_of(0)
    host.manager.on_home_error(failed, OSError(errno.EIO, "Input/output error"))
    # The replica is taken from this node, and given to it again.
    await host.manager.delete(partition(0), TOPIC_ID)
    await host.create_with(0, b"new")
    newer = host.home_of(0)
    assert newer is not failed
    return host, failed, newer


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_directory_that_comes_back_has_the_older_copy(power_cut: bool) -> None:
    async def scenario() -> None:
        host, failed, _ = await two_copies()
        await host.crash(power_cut=power_cut)
        manager = await host.start(0)
        assert await values_of(manager.logs[key(0)]) == [(0, b"new")]
        assert host.home_of(0).path != failed.path
        stray = host.process.open_directory(f"{failed.path}/stray")
        assert stray.names() == [f"t-0.{TOPIC_ID}"]
        await host.stop()

    run(scenario)


@pytest.mark.parametrize("broken", ["older", "newer", "newer at its records"])
def test_a_disk_that_fails_while_two_copies_are_compared_stops_no_start(broken: str) -> None:
    async def scenario() -> None:
        host, failed, newer = await two_copies()
        await host.crash()
        home = failed if broken == "older" else newer
        if broken == "newer at its records":
            made = f"{newer.path}/topics/t-0.{TOPIC_ID}"
            host.machine.boot(asyncio.get_running_loop()).open_directory(made).unlink(REPLACES)
            part = ".log"
        else:
            part = REPLACES
        fault = DiskFault(operations=("exists", "open", "size", "read"), path_part=part)
        host.machine.disks[home.path.removesuffix("/dlog")].faults.append(fault)
        manager = await host.start(0)
        assert [each.path for each in manager.homes if each.failure] == [home.path]
        assert host.home_of(0).path != home.path
        assert sum(key(0) in each.names for each in manager.homes) == 1
        await host.stop()

    run(scenario)
