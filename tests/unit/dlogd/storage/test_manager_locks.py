"""Who may use a data directory, and until when, where its disk hangs."""

import asyncio

import pytest

from dlog.errors import ConfigError
from dlogd.storage.directory.data_directory import DataDirectory
from dlogd.storage.directory.log_directory import StorageSettings
from tests.fakes.logs import append, run_virtual
from tests.fakes.manager import SETTINGS, ManagerHost, key, until


def test_a_directory_with_writes_in_flight_is_nobody_elses_until_its_process_ends() -> None:
    """A late write would come between those of the next process, which has recovered by then."""

    async def scenario() -> None:
        settings = StorageSettings(reserve=SETTINGS.reserve, disk_timeout_ms=800)
        host = ManagerHost(2, settings=settings)
        manager = await host.start()
        await host.create_with(0, b"x")
        home = host.home_of(0)
        host.machine.disks[home.path.removesuffix("/dlog")].stick()
        append(manager.logs[key(0)], b"x" * 5000)
        await until(lambda: home.disk.given_up)
        assert f"disk of {home.path}" in await manager.close(timeout_s=1.0)
        host.machine.heal()
        process = host.machine.boot(asyncio.get_running_loop())
        for path in [each.path for each in manager.homes]:
            claim = DataDirectory(process.open_directory(path)).claim
            if path != home.path:
                await process.engine.run(claim)
                continue
            with pytest.raises(ConfigError, match="in use by another process"):
                await process.engine.run(claim)
        await host.services.tasks.close()

    run_virtual(scenario)
