"""Consumers that follow logs while a cluster is harmed, and note all that they were given.

`dlog.client` and confluent-kafka. None has a group: each keeps account of its own places. One only
asks where logs begin and end. What is there in the end is read by `read_final`.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka as librdkafka

from dlog.client.consumer import Consumer
from dlog.client.gaps import GapError
from dlog.errors import DlogError
from dlog.types import PartitionId, TopicPartition
from tests.clients.guarded_consumer import GuardedConsumer
from tests.cluster.senders import SendCounts, number_of
from tests.histories.files import Recorder, Violation
from tests.histories.history import FinalLog, Follower, LogKey, Poll, Seen, WatermarkTold

POLL_S = 0.3
LOOK_S = 0.1
LIFE_S = (3.0, 15.0)
FINISH_S = 180.0


class Reader:
    """Follows all logs from their beginnings. Life: `run`, which ends at the ends of `finish`."""

    def __init__(
        self, name: str, recorder: Recorder, counts: SendCounts, keys: Sequence[LogKey]
    ) -> None:
        self.name = name
        self.recorder = recorder
        self.counts = counts
        self.positions: dict[LogKey, int] = dict.fromkeys(keys, 0)
        self.keys = {(key.topic, key.partition): key for key in keys}
        self._told: dict[LogKey, int] = {}
        self._ends: Mapping[LogKey, int] | None = None
        self._deadline_s = 0.0
        self._is_lost = False

    def finish(self, ends: Mapping[LogKey, int]) -> None:
        """Read to these ends, and end."""
        self._ends = ends
        self._deadline_s = time.monotonic() + FINISH_S

    @property
    def is_done(self) -> bool:
        """Whether all has been read, or it takes too long: then the judges will see it."""
        if self._ends is None:
            return False
        if self._is_lost or time.monotonic() > self._deadline_s:
            return True
        return all(self.positions[key] >= end for key, end in self._ends.items())

    async def run(self) -> None:
        """Read until all is done."""
        raise NotImplementedError

    def note(self, invoked_ns: int, found: Mapping[LogKey, list[Seen]]) -> None:
        """Note what was given."""
        now_ns = time.monotonic_ns()
        for key, seen in found.items():
            poll = Poll(self.name, key, invoked_ns, now_ns, 0, -1, 0, tuple(seen), tailing=True)
            self.recorder.add(poll)
            self.positions[key] = seen[-1].offset + 1

    def note_watermarks(self, told: Mapping[tuple[str, int], int]) -> None:
        """Note the high watermarks that the client knows by now, from some answer."""
        now_ns = time.monotonic_ns()
        for place, high_watermark in told.items():
            key = self.keys[place]
            if high_watermark >= 0 and self._told.get(key) != high_watermark:
                self._told[key] = high_watermark
                self.recorder.add(WatermarkTold(self.name, key, now_ns, high_watermark))

    def note_end(self) -> None:
        """Promise that all was read: the judges hold this against it."""
        for key in self.positions:
            self.recorder.add(Follower(self.name, key))

    def violation(self, text: str) -> None:
        """Note what no consumer may be told."""
        self.recorder.add(Violation(f"{text} client={self.name}"))


class OwnReader(Reader):
    """`dlog.client`; unless it is steady, a new one goes on at the same places now and then."""

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        counts: SendCounts,
        keys: Sequence[LogKey],
        bootstrap: Sequence[str],
        rng: random.Random,
        *,
        steady: bool,
    ) -> None:
        super().__init__(name, recorder, counts, keys)
        self._bootstrap = list(bootstrap)
        self._rng = rng
        self._steady = steady

    async def run(self) -> None:
        while not self.is_done:
            try:
                await self._one_life()
            except DlogError as error:
                self.counts.reason(f"own reader start: {type(error).__name__}")
                await asyncio.sleep(0.2)
        self.note_end()

    async def _one_life(self) -> None:
        starts = {
            TopicPartition(key.topic, PartitionId(key.partition)): position
            for key, position in self.positions.items()
        }
        end_s = time.monotonic() + (1e9 if self._steady else self._rng.uniform(*LIFE_S))
        async with Consumer(
            self._bootstrap, partitions=list(starts), start=starts, rng=self._rng
        ) as consumer:
            while not self.is_done and time.monotonic() < end_s:
                await self._poll(consumer)

    async def _poll(self, consumer: Consumer) -> None:
        invoked_ns = time.monotonic_ns()
        try:
            records = await consumer.poll(timeout_ms=POLL_S * 1000)
        except GapError as error:
            # Nothing is trimmed or compacted here, and nobody makes a topic anew.
            self.violation(f"lost-read: {error}")
            await consumer.seek(error.gap.topic_partition, error.gap.resume_offset)
            return
        except DlogError as error:
            self.counts.reason(f"own reader: {type(error).__name__}")
            return
        found: dict[LogKey, list[Seen]] = {}
        for record in records:
            key = self.keys[record.topic, record.partition]
            number = number_of(record.value)
            found.setdefault(key, []).append(Seen(record.offset, number, record.timestamp_ms))
        self.note(invoked_ns, found)
        cursors = consumer._reading.fetcher.cursors  # `lag` would ask nodes for what is not known
        self.note_watermarks(
            {(key.topic, key.partition): each.high_watermark for key, each in cursors.items()}
        )


class Lookout(Reader):
    """Asks where all logs begin and end, and notes when: that is judged beside everybody's else."""

    def __init__(
        self,
        recorder: Recorder,
        counts: SendCounts,
        keys: Sequence[LogKey],
        bootstrap: Sequence[str],
    ) -> None:
        super().__init__("lookout", recorder, counts, keys)
        self._bootstrap = list(bootstrap)

    async def run(self) -> None:
        places = {
            key: TopicPartition(key.topic, PartitionId(key.partition)) for key in self.positions
        }
        while not self.is_done:
            try:
                async with Consumer(self._bootstrap, partitions=list(places.values())) as consumer:
                    consumer.pause()
                    while not self.is_done:
                        await asyncio.gather(*(self._look(consumer, *e) for e in places.items()))
                        await asyncio.sleep(LOOK_S)
            except DlogError as error:
                self.counts.reason(f"lookout: {type(error).__name__}")
                await asyncio.sleep(LOOK_S)

    async def _look(self, consumer: Consumer, key: LogKey, place: TopicPartition) -> None:
        """Ask for the beginning, then for the end: the other way round that may be less."""
        invoked_ns = time.monotonic_ns()
        start = (await consumer.start_offsets([place]))[place]
        end = (await consumer.end_offsets([place]))[place]
        now_ns = time.monotonic_ns()
        self.recorder.add(Poll(self.name, key, invoked_ns, now_ns, 0, end, start, ()))
        self.positions[key] = end


class RdkReader(Reader):
    """confluent-kafka, in a thread of its own."""

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        counts: SendCounts,
        keys: Sequence[LogKey],
        bootstrap: Sequence[str],
    ) -> None:
        super().__init__(name, recorder, counts, keys)
        starts = dict.fromkeys(self.keys, 0)
        self._consumer = GuardedConsumer(",".join(bootstrap), starts)
        self._thread = ThreadPoolExecutor(1, name)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_done:
            invoked_ns = time.monotonic_ns()
            messages = await loop.run_in_executor(self._thread, self._consumer.consume, 500, POLL_S)
            self._take(invoked_ns, messages)
            self.note_watermarks(self._consumer.watermarks)
        await loop.run_in_executor(self._thread, self._consumer.close)
        self._thread.shutdown()
        self.note_end()

    def _take(self, invoked_ns: int, messages: Sequence[Any]) -> None:
        found: dict[LogKey, list[Seen]] = {}
        for message in messages:
            error = message.error()
            if error is None:
                key = self.keys[message.topic(), message.partition()]
                seen = Seen(message.offset(), number_of(message.value()), message.timestamp()[1])
                found.setdefault(key, []).append(seen)
            elif error.code() in (
                librdkafka.KafkaError._AUTO_OFFSET_RESET,
                librdkafka.KafkaError.OFFSET_OUT_OF_RANGE,
            ):
                self.violation(f"lost-read: {error}")
                self._is_lost = True  # it reads no more of that log
            else:
                self.counts.reason(f"rdk reader: {error.name()}")
        self.note(invoked_ns, found)


async def read_final(bootstrap: Sequence[str], keys: Sequence[LogKey]) -> list[FinalLog]:
    """Return the whole of some logs; all has healed, so errors are the caller's to see."""
    partitions = {TopicPartition(key.topic, PartitionId(key.partition)): key for key in keys}
    records: dict[LogKey, list[Seen]] = {key: [] for key in keys}
    async with (
        asyncio.timeout(FINISH_S),
        Consumer(list(bootstrap), partitions=list(partitions)) as consumer,
    ):
        starts = await consumer.start_offsets()
        ends = await consumer.end_offsets()
        while any(consumer.position(each) < end for each, end in ends.items()):
            for record in await consumer.poll():
                place = TopicPartition(record.topic, PartitionId(record.partition))
                if record.offset < ends[place]:
                    seen = Seen(record.offset, number_of(record.value), record.timestamp_ms)
                    records[partitions[place]].append(seen)
    return [
        FinalLog(key, starts[each], ends[each], tuple(records[key]))
        for each, key in partitions.items()
    ]
