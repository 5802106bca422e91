"""Random lives of a node's data directories: every log has what it promised, none anything else.

The real log manager over two simulated disks, which fail, hang, are full for a moment, stay away
for a start and come back, while logs are made, written, cut, begun anew, trimmed, deleted and made
again under their old names. Beside it the plainest of models: for each log where it may begin, what
must be in it and what may. Whatever happened, each start opens all logs of the directories that
work, none is in two of them, and no log is called damaged, for nothing here damages one.
"""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from dlog.errors import WireError
from dlogd.config.units import DiskReserve
from dlogd.storage.directory.log_directory import StorageSettings
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_manager import LogManager
from tests.fakes.faults import DiskFault, Latency
from tests.fakes.logs import append, run_virtual, values_of
from tests.fakes.manager import NODE, TOPIC_ID, ManagerHost, key, partition, wanted
from tests.simulation.loop import SimClock, SimLoop

WALKS, LIVES, STEPS = 60, 6, 14
NUMBERS = range(4)
STUCK_S = 300.0
"""No disk is waited for so long, nor is a full one full."""
CONFIG = LogConfig(
    segment_bytes=600, preallocate_bytes=8192, index_interval_bytes=128, retention_ms=-1
)
SETTINGS = StorageSettings(
    reserve=DiskReserve(bytes=0), disk_timeout_ms=2_000, high_watermark_interval_ms=400
)
ALL = ("open", "create", "names", "read", "write", "sync", "sync_directory", "rename", "unlink")


class Expected:
    """What one log may hold."""

    def __init__(self) -> None:
        self.starts = {0}
        self.must: dict[int, bytes] = {}
        self.may: dict[int, bytes] = {}
        self.cut = False
        """Whether a cut is under way: what was promised behind it need not be there any more."""

    def promised(self, offset: int) -> None:
        """All below `offset` was promised."""
        if not self.cut:
            self.must |= {at: value for at, value in self.may.items() if at < offset}

    async def cutting(self, plog: PartitionLog, offset: int, work: Awaitable[None]) -> None:
        """Cut the log, which keeps what is below `offset`; when that is refused, all."""
        self.promised(plog.promised_offset)
        before, ends = self.must, (plog.log_start_offset, plog.log_end_offset)
        self.must = {at: value for at, value in before.items() if at < offset}
        self.cut = True
        try:
            await work
        except WireError:
            if plog.failed is None and ends == (plog.log_start_offset, plog.log_end_offset):
                self.must, self.cut = before, False
            raise
        self.cut = False
        self.may = {at: value for at, value in self.may.items() if at < offset}
        self.promised(plog.promised_offset)

    def found(self, start: int, values: list[tuple[int, bytes]]) -> None:
        """Compare with what is there, which is all that counts from now on."""
        assert start in self.starts, (start, self.starts)
        assert [at for at, _ in values] == list(range(start, start + len(values)))
        there = dict(values)
        assert all(self.may.get(at) == value for at, value in values), "what was never appended"
        lost = [at for at in self.must if at >= start and at not in there]
        assert not lost, f"promised and lost: {lost}"
        self.starts, self.must, self.may, self.cut = {start}, dict(there), there, False


class Life:
    """Lives of one node, one after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host = ManagerHost(2, seed=seed, settings=SETTINGS)
        self.logs: dict[int, Expected] = {}
        self.doomed: set[int] = set()
        """Not deleted yet, although they should be."""
        self.away = ""
        """The disk that does not work, also in the next start."""
        self.epoch = self.count = 0
        self.known: tuple[object, ...] = ()
        self.done: list[str] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """What goes on, of each log one thing."""
        self.manager: LogManager

    # -- lives

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.host.clock = SimClock(loop)
        for _ in range(LIVES):
            await self.start()
            for _ in range(self.rng.randrange(STEPS)):
                await self.step()
            await self.end()
        self.away = ""
        await self.start()
        await self.end()

    async def start(self) -> None:
        """Begin a life; everything that is on a disk that works must be there."""
        for mount, disk in self.host.machine.disks.items():
            disk.heal()
            disk.latency = Latency(mean=self.rng.choice((0.0, 0.0005)))
            if mount == self.away:
                disk.faults.append(DiskFault(ALL))
        self.done.append(f"start without {self.away or 'nothing'}")
        self.manager = manager = self.host.boot()
        await manager.claim(NODE, None)
        await manager.open(wanted(*self.logs, config=CONFIG), self.known)  # type: ignore[arg-type]
        assert not manager.failures, manager.failures
        for number, expected in self.logs.items():
            plog = manager.logs.get(key(number))
            if plog is not None:
                expected.found(plog.log_start_offset, await values_of(plog))
            else:
                assert self.away, f"{number} is nowhere"
        self.doomed.clear()
        self.epoch += 1
        await manager.begin(self.epoch)
        self.known = manager.directory_ids

    async def end(self) -> None:
        """End the life, in order or not, perhaps in the middle of something."""
        how = self.rng.choice(("stop", "kill", "power"))
        self.done.append(how)
        if how == "stop":
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)
            await asyncio.wait_for(self.manager.close(timeout_s=30.0), STUCK_S)
        for number, expected in self.logs.items():
            plog = self.manager.logs.get(key(number))
            if plog is not None:
                expected.promised(plog.promised_offset)
        for task in self.tasks.values():
            task.cancel()
        await self.host.crash(power_cut=how != "kill")
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        self.tasks.clear()
        if self.rng.random() < 0.6:
            self.away = ""

    # -- steps

    async def step(self) -> None:
        """Do something; it may fail, and the life may end before it has ended."""
        number = self.rng.choice([each for each in NUMBERS if self.is_idle(each)] or [None])
        if number is None:
            await asyncio.sleep(0.001)
            return
        plog = self.manager.logs.get(key(number))
        actions: list[Callable[[int], Awaitable[None]]] = [self.harm, self.save, self.rest]
        if number not in self.logs:
            actions = [self.create, self.create, self.rest]
        elif plog is None:
            actions = [self.replace, self.delete, self.rest]
        elif plog.failed is None:
            actions += [self.write] * 4 + [self.truncate, self.begin_anew, self.trim, self.delete]
        else:
            actions = [self.delete, self.rest]
        action = self.rng.choice(actions)
        self.done.append(f"{action.__name__} {number}")
        task = self.tasks[number] = asyncio.ensure_future(self.attempt(action, number))
        if self.rng.random() < 0.7:
            await asyncio.wait_for(asyncio.shield(task), STUCK_S)
            task.result()
        else:
            await asyncio.sleep(self.rng.choice((0.0001, 0.001, 0.01)))

    def is_idle(self, number: int) -> bool:
        task = self.tasks.get(number)
        if task is not None and task.done():
            task.result()
        return task is None or task.done()

    async def attempt(self, action: Callable[[int], Awaitable[None]], number: int) -> None:
        with suppress(WireError, OSError):
            await action(number)

    def opened(self, number: int) -> tuple[PartitionLog, Expected]:
        return self.manager.logs[key(number)], self.logs[number]

    async def create(self, number: int, *, anew: bool = False) -> None:
        if number in self.doomed:
            await self.manager.delete(partition(number), TOPIC_ID)
            self.doomed.discard(number)
        expected = Expected()
        # Until somebody hears that it is there nobody wants it.
        await self.manager.create(partition(number), TOPIC_ID, CONFIG, anew=anew)
        self.logs[number] = expected

    async def replace(self, number: int) -> None:
        """Others have what is on a directory that is out of service."""
        await self.create(number, anew=True)

    async def delete(self, number: int) -> None:
        del self.logs[number]
        self.doomed.add(number)
        await self.manager.delete(partition(number), TOPIC_ID)
        self.doomed.discard(number)

    async def write(self, number: int) -> None:
        plog, expected = self.opened(number)
        for _ in range(self.rng.randrange(1, 8)):
            self.count += 1
            value = b"%d " % self.count + b"x" * self.rng.choice((1, 50, 300))
            offset = append(plog, value, epoch=self.epoch)
            assert offset is not None
            expected.may[offset] = value
        if self.rng.random() < 0.7:
            end = plog.log_end_offset
            await plog.flush()
            expected.promised(end)

    async def truncate(self, number: int) -> None:
        plog, expected = self.opened(number)
        offset = self.rng.randint(plog.log_start_offset, plog.log_end_offset)
        await expected.cutting(plog, offset, plog.truncate_to(offset))

    async def begin_anew(self, number: int) -> None:
        plog, expected = self.opened(number)
        offset = max(0, plog.log_end_offset + self.rng.randint(-5, 5))
        expected.starts.add(offset)
        await expected.cutting(plog, 0, plog.start_at(offset))
        expected.starts = {offset}

    async def trim(self, number: int) -> None:
        plog, expected = self.opened(number)
        offset = self.rng.randint(plog.log_start_offset, plog.promised_offset)
        expected.starts.add(offset)
        await plog.trim_to(offset)
        expected.starts = {offset}

    async def save(self, _: int) -> None:
        home = self.rng.choice(self.manager.homes)
        if home.failure is None:
            await self.manager._upkeep.marks.save(home)

    async def rest(self, _: int) -> None:
        await asyncio.sleep(self.rng.choice((0.001, 0.1, 3.0)))

    async def harm(self, _: int) -> None:
        """Let something happen to a disk; one of them works in any case."""
        mount = self.rng.choice(self.host.mounts)
        disk = self.host.machine.disks[mount]
        chosen, count = (self.rng.choice(ALL),), self.rng.choice((1, 2))
        what = self.rng.choice(("short", "short", "full", "full", "error", "gone", "hang"))
        if what in ("short", "full"):
            code = errno.EMFILE if what == "short" else errno.ENOSPC
            disk.faults.append(DiskFault(chosen, code, count))
        elif self.away in ("", mount):
            self.away = mount
            if what == "hang":
                disk.stick()
            else:
                disk.faults.append(DiskFault(ALL if what == "gone" else chosen))


@pytest.mark.parametrize("start", range(0, WALKS, 10))
def test_every_log_has_what_it_promised(start: int) -> None:
    for seed in range(start, start + 10):
        life = Life(seed)
        try:
            run_virtual(life.live)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(life.done)) from error
