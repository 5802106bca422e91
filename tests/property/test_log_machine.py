"""A partition log against a list: appends, reads, cuts, rolls, crashes and power cuts in any order.

Runs in virtual time on the simulated disk, so blocking work is interleaved with everything else and
a crash may come at any operation of the disk.
"""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dlog.errors import WireError
from dlog.types import ZERO_TOPIC_ID
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.disk import Machine, Process
from tests.fakes.faults import Latency
from tests.fakes.lies import append_batch, claiming
from tests.fakes.logs import (
    TOPIC_PARTITION,
    batch_of,
    next_offset_of,
    read_batches,
    services_for,
    values_in,
)
from tests.simulation.loop import SimClock, SimLoop, World

EXAMPLES = int(os.environ.get("DLOG_LOG_EXAMPLES", "60"))
STEPS = int(os.environ.get("DLOG_LOG_STEPS", "40"))

CONFIGS = st.builds(
    LogConfig,
    segment_bytes=st.sampled_from([6_000, 30_000, 200_000]),
    index_interval_bytes=st.sampled_from([256, 1024, 4096]),
    preallocate_bytes=st.sampled_from([0, 8192, 1 << 20]),
    flush_policy=st.sampled_from(list(FlushPolicy)),
    flush_interval_ms=st.sampled_from([1, 50]),
    direct_io=st.sampled_from([DirectIo.AUTO, DirectIo.OFF]),
    max_message_bytes=st.just(20_000),
)
LIES = st.sampled_from([None, None, -1, 0, 1_000_000, 2_000_000, 1 << 50])
"""Largest timestamps that heads of batches claim; None: the true one."""
SIZES = st.one_of(st.integers(0, 300), st.sampled_from([450, 512, 1000, 4096, 9000, 15_000]))


class Batch:
    """One batch of the model."""

    def __init__(self, base: int, values: tuple[bytes, ...], epoch: int, timestamp_ms: int) -> None:
        self.base = base
        self.end = base + len(values)
        self.values = values
        self.epoch = epoch
        self.timestamp_ms = timestamp_ms


class LogMachine(RuleBasedStateMachine):
    """The model is `batches` from `start` on; `self.log` must agree with it."""

    @initialize(config=CONFIGS, seed=st.integers(0, 1 << 16), pause=st.sampled_from([0.0, 0.3]))
    def begin(self, config: LogConfig, seed: int, pause: float) -> None:
        self.world = World()
        self.machine = Machine(random.Random(seed))
        self.machine.disks["/data"].latency = Latency(fixed=0.0001, mean=0.0004)
        self.config = config
        self.pause = pause
        self.batches: list[Batch] = []
        self.start = 0
        self.epoch = 0
        self.count = 0
        self.weak_flushed = 0
        self.boot(clean=False)

    # -- the process

    def boot(self, *, clean: bool) -> None:
        self.loop = SimLoop(self.world)
        self.process: Process = self.machine.boot(self.loop)
        self.process.engine.pause_share = self.pause
        # Of a log that cannot be opened nothing is asked in the end.
        self.__dict__.pop("log", None)
        self.log: PartitionLog = self.do(self.open(clean))

    async def open(self, clean: bool) -> PartitionLog:
        services = services_for(
            self.process.engine,
            pool_bytes=131_072,
            clock=SimClock(self.loop),
        )
        directory = self.process.open_directory("/data/t-0")
        return await PartitionLog.open(
            TOPIC_PARTITION, ZERO_TOPIC_ID, directory, self.config, services, clean=clean
        )

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call `function` on the loop."""

        async def work() -> Any:
            return function(*arguments, **options)

        return self.do(work())

    def run_for(self, microseconds: int) -> None:
        ended: list[int] = []
        self.world.at(microseconds * 1000, ended.append, 1)
        self.world.run(lambda: bool(ended))

    def end_process(self, *, power: bool) -> None:
        self.loop.kill()
        assert not self.process.misuses
        if power:
            self.machine.power_cut()
        else:
            self.machine.crash()

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    # -- appends

    @rule(
        sizes=st.lists(SIZES, min_size=1, max_size=4),
        times=st.integers(1, 5),
        newer=st.integers(-1000, 2000),
        bump=st.sampled_from([0, 0, 0, 0, 1, 3]),
        lie=LIES,
    )
    def append(self, sizes: list[int], times: int, newer: int, bump: int, lie: int | None) -> None:
        self.epoch += bump
        if not self.batches:
            self.epoch //= 2  # an empty log may go on with an older history
        for _ in range(times):
            self.count += 1
            values = tuple(
                b"%d.%d " % (self.count, n) + bytes(size) for n, size in enumerate(sizes)
            )
            timestamp_ms = 1_000_000 + self.count * 10 + newer
            batch = claiming(batch_of(*values, timestamp_ms=timestamp_ms), lie)
            offset = self.call(append_batch, self.log, batch, self.epoch, as_leader=lie is None)
            if offset is None:
                self.wait_for_memory()
                continue
            assert offset == self.end
            self.batches.append(Batch(offset, values, self.epoch, timestamp_ms))

    def wait_for_memory(self) -> None:
        called: list[int] = []
        self.call(self.log.when_writable, lambda: called.append(1))
        self.do(self.until(called))

    async def until(self, called: list[int]) -> None:
        while not called:
            await asyncio.sleep(0.001)

    @rule()
    def append_verbatim(self) -> None:
        self.count += 1
        head = batch_of(b"verbatim %d" % self.count, timestamp_ms=1_000_000 + self.count * 10)
        head[0:8] = self.end.to_bytes(8, "big")
        head[12:16] = self.epoch.to_bytes(4, "big")
        offset = self.call(self.log.append_verbatim, memoryview(head))
        if offset is None:
            self.wait_for_memory()
            return
        values = (b"verbatim %d" % self.count,)
        self.batches.append(Batch(offset, values, self.epoch, 1_000_000 + self.count * 10))

    # -- time, flushes, rolls

    @rule(microseconds=st.sampled_from([0, 10, 100, 500, 2000, 100_000]))
    def wait(self, microseconds: int) -> None:
        self.run_for(microseconds)

    @rule()
    def flush(self) -> None:
        end = self.log.log_end_offset
        self.do(self.log.flush())
        assert self.log.flushed_offset >= end

    @rule()
    def roll(self) -> None:
        self.call(self.log.roll)

    @rule(config=CONFIGS)
    def reconfigure(self, config: LogConfig) -> None:
        self.config = config
        self.call(self.log.reconfigure, config)

    # -- reads

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), max_bytes=st.sampled_from([1, 100, 5000, 1 << 30]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        end = data.draw(
            st.sampled_from(sorted({self.end, self.log.promised_offset, *self.some_ends()}))
        )
        found = self.do(read_batches(self.log, offset, max_bytes, end))
        got = [entry for entry in values_in(found) if entry[0] >= offset]
        assert got == [entry for entry in self.values() if offset <= entry[0] < end]

    def some_ends(self) -> list[int]:
        return [batch.end for batch in self.batches[-8:]]

    def values(self) -> list[tuple[int, bytes]]:
        return [
            (batch.base + number, value)
            for batch in self.batches
            for number, value in enumerate(batch.values)
            if batch.base + number >= self.start
        ]

    @rule(max_bytes=st.integers(1, 30_000))
    def one_read_is_bounded(self, max_bytes: int) -> None:
        found = self.call(self.log.read, self.start, max_bytes, self.log.log_end_offset)
        if found is None or not found.ranges:
            return
        first = next(b for b in self.batches if b.base == found.base_offset)
        assert found.bytes <= max(max_bytes, len(batch_of(*first.values)))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def find_timestamp(self, data: st.DataObject) -> None:
        known = sorted({b.timestamp_ms for b in self.batches})
        wanted = data.draw(st.sampled_from(known)) + data.draw(st.sampled_from([-1, 0, 1]))
        found = self.do(self.log.offset_for_timestamp(wanted))
        expected = [
            (b.timestamp_ms, max(b.base, self.start), b.epoch)
            for b in self.batches
            if b.timestamp_ms >= wanted
        ]
        assert found == (expected[0] if expected else None)

    @precondition(lambda self: self.batches)
    @rule()
    def find_newest(self) -> None:
        newest = max(b.timestamp_ms for b in self.batches)
        first = next(b for b in self.batches if b.timestamp_ms == newest)
        found = self.do(self.log.offset_of_max_timestamp())
        assert found == (newest, max(first.base, self.start), first.epoch)

    @rule()
    def replay(self) -> None:
        self.do(self.log.flush())
        heads = self.do(self.heads())
        assert heads == [(b.base, b.end - 1, b.epoch) for b in self.batches]

    async def heads(self) -> list[tuple[int, int, int]]:
        return [
            (header.base_offset, header.last_offset, header.leader_epoch)
            async for header in self.log.replay(self.start)
        ]

    # -- cuts

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.do(self.log.truncate_to(offset))
        self.cut(offset)
        assert self.log.log_end_offset == max(self.end, self.start)

    def cut(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.end <= offset]

    @rule(ahead=st.integers(-20, 20))
    def start_at(self, ahead: int) -> None:
        offset = max(0, self.end + ahead)
        self.do(self.log.start_at(offset))
        self.batches.clear()
        self.start = offset

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.log.promised_offset))
        self.do(self.log.trim_to(offset))
        self.trimmed(offset)

    def trimmed(self, offset: int) -> None:
        self.start = max(self.start, offset)
        assert self.log.log_start_offset == self.start
        self.batches = [batch for batch in self.batches if batch.end > self.start]

    # -- ends of the process

    @rule()
    def restart(self) -> None:
        self.do(self.log.close())
        self.end_process(power=True)
        self.boot(clean=True)
        assert self.log.log_end_offset == self.end

    @rule(microseconds=st.integers(0, 2000), power=st.booleans())
    def crash(self, microseconds: int, power: bool) -> None:
        self.run_for(microseconds)
        kept = self.log.flushed_offset if power else self.log.promised_offset
        self.end_process(power=power)
        self.after_crash(kept, self.start, self.start)

    @precondition(lambda self: self.batches)
    @rule(
        data=st.data(),
        steps=st.integers(1, 40),
        power=st.booleans(),
        what=st.sampled_from(["truncate", "trim", "close", "flush", "roll"]),
    )
    def die_during(self, data: st.DataObject, steps: int, power: bool, what: str) -> None:
        kept = int(self.log.flushed_offset if power else self.log.promised_offset)
        start_max = self.start
        work: Coroutine[Any, Any, Any]
        if what == "truncate":
            offset = data.draw(st.integers(self.start, self.end))
            below = [b.end for b in self.batches if b.end <= offset]
            kept = min(kept, max(self.start, below[-1] if below else 0))
            work = self.log.truncate_to(offset)
        elif what == "trim":
            start_max = data.draw(st.integers(self.start, self.log.promised_offset))
            work = self.log.trim_to(start_max)
        elif what == "close":
            work = self.log.close()
        else:
            if what == "roll":
                self.call(self.log.roll)
            work = self.log.flush()
        died: list[int] = []
        self.machine.die_at(steps, lambda: died.append(1))
        task = self.loop.create_task(work)
        self.world.run(lambda: bool(died) or task.done())
        if not died:
            assert isinstance(task.exception(), WireError | None)
        self.end_process(power=power)
        self.after_crash(kept, self.start, start_max)

    def after_crash(self, kept: int, start_min: int, start_max: int) -> None:
        self.boot(clean=False)
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert start in (start_min, start_max)
        assert kept <= max(end, start), f"lost [{end}, {kept})"
        ends = [start_min, start_max, *(b.end for b in self.batches)]
        assert end in ends
        self.batches = [b for b in self.batches if start < b.end <= end]
        self.start = start

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert log.failed is None
        log.check_chain()
        assert log.log_start_offset == self.start
        assert log.log_end_offset == self.end
        assert not self.process.misuses
        latest = self.batches[-1].epoch if self.batches else None
        if latest is not None:
            assert log.last_epoch == latest
            first = next(b for b in self.batches if b.epoch == latest)
            assert log.epoch_at(max(first.base, self.start)) == latest

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        got = values_in(self.do(read_batches(self.log, self.start)))
        assert [entry for entry in got if entry[0] >= self.start] == self.values()
        assert not got or next_offset_of(self.do(read_batches(self.log, self.start))) == self.end
        self.end_process(power=False)


LogMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestLogMachine = LogMachine.TestCase
