"""Simulated users whose batches lie: heads with another largest timestamp, records that are none.

What they write is honest but for the head, so that it must be kept, read and found by time as
everything else. Nonsense must be refused with INVALID_RECORD, and nothing of it may be appended.
"""

import random
from dataclasses import dataclass
from typing import Any

from dlog.batch.header import HEADER_BYTES
from dlog.batch.records import Record, encode
from dlog.client.cluster.partition_calls import list_offsets, produce
from dlog.compression import Codec
from dlog.errors import DlogError, InvalidRecordError, WireError
from tests.fakes.batches import with_head, with_records
from tests.histories.history import LogKey, Outcome, Seen, Send
from tests.simulation.clients import make_value
from tests.simulation.fleet.data_clients import DataClients

LIARS_FROM = 300_000
"""Seeds below it keep the schedules by which known holes are remembered."""
LIARS_SHARE = 0.7
NONSENSE_SHARE = 0.15
SPREAD_MS = 4_000
"""Records of a batch lie so far apart, in any order."""
# Said before the append and never behind it: too few replicas, a bad timestamp, a bad record.
_NOT_APPENDED = frozenset((19, 32, 87))


@dataclass(frozen=True, slots=True)
class DataLiarPlan:
    """One of them."""

    name: str
    interval_ms: int
    records_max: int


def draw_liars(seed: int, pace: float) -> tuple[DataLiarPlan, ...]:
    """Return those of a seed, drawn apart from all else; below LIARS_FROM there are none."""
    if seed < LIARS_FROM:
        return ()
    rng = random.Random(f"{seed}/fleet/liars")
    if rng.random() >= LIARS_SHARE:
        return ()
    return (DataLiarPlan("liar", int(rng.choice((60, 150, 400)) * pace), rng.choice((1, 3, 8))),)


class DataLiar:
    """Writes until the run's time is over, a batch at a time."""

    def __init__(self, clients: DataClients, plan: DataLiarPlan) -> None:
        self._clients = clients
        self._around = clients.around
        self.plan = plan
        self._rng = random.Random(f"{clients.plan.seed}/{plan.name}")

    async def run(self) -> None:
        """Write, and note what became of it."""
        cluster = self._clients.cluster(self.plan.name, self._rng)
        while self._around.active:
            await self._around.sleep_ms(self.plan.interval_ms * 2 * self._rng.random())
            key = self._clients.pick(self._rng)
            if key is not None:
                await self._write(cluster, key)
        await cluster.close()

    async def _write(self, cluster: Any, key: LogKey) -> None:
        is_nonsense = self._rng.random() < NONSENSE_SHARE
        count = self._rng.randint(1, self.plan.records_max)
        numbers = tuple(next(self._clients.numbers) for _ in range(count))
        data = self._nonsense(numbers) if is_nonsense else self._misstated(numbers)
        send = Send(self.plan.name, key, numbers, -1, self._clients.now_ns(), None, attempts=1)
        self._around.history.sends.append(send)
        outcome, error = Outcome.UNKNOWN, ""
        timeout_ms = int(1_000 * self._clients.plan.pace)
        try:
            node = await cluster.leader(key.topic, key.partition)
            sent = await produce(
                node, key.topic, key.partition, data, acks=-1, timeout_ms=timeout_ms
            )
            assert sent is not None
            send.base_offset, outcome = sent.base_offset, Outcome.OK
        except WireError as found:
            error = repr(found)
            if found.code in _NOT_APPENDED:
                outcome = Outcome.REFUSED
            if isinstance(found, InvalidRecordError) and not is_nonsense:
                self._around.violate(f"head: an honest batch was refused: {found} log={key}")
        except DlogError as found:
            error = repr(found)
        if is_nonsense and outcome is Outcome.OK:
            self._around.violate(f"nonsense: a batch of {numbers} was taken log={key}")
        send.completed_ns, send.outcome, send.error = self._clients.now_ns(), outcome, error
        self._around.count(f"lies {outcome.value}")

    def _records(self, numbers: tuple[int, ...]) -> list[Record]:
        now_ms, rng = self._clients.timestamp_ms(), self._rng
        return [
            Record(None, make_value(number, 30), (), now_ms - rng.randrange(SPREAD_MS))
            for number in numbers
        ]

    def _misstated(self, numbers: tuple[int, ...]) -> bytes:
        """Return a batch whose head says another largest timestamp."""
        codec = Codec(self._rng.choice((0, 0, 0, 1, 3)))
        now_ms = self._clients.timestamp_ms()
        claims = (-1, 0, now_ms - 2 * SPREAD_MS, now_ms + SPREAD_MS)
        data = encode(self._records(numbers), codec=codec)
        return bytes(with_head(data, max_timestamp_ms=self._rng.choice(claims)))

    def _nonsense(self, numbers: tuple[int, ...]) -> bytes:
        """Return a plain batch that no client could read."""
        data = encode(self._records(numbers))
        records, count = bytes(data[HEADER_BYTES:]), len(numbers)
        return bytes(
            self._rng.choice(
                (
                    with_records(data, records, count + 1),
                    with_records(data, records + b"\0", count),
                    with_records(data, records[:-1], count),
                    with_records(data, bytes([records[0] + 2]) + records[1:], count),
                )
            )
        )


def check_head(header: Any, records: list[Any], tell: Any, key: LogKey) -> None:
    """Tell where the head of a plain batch does not say its records' largest timestamp."""
    if header.codec is not Codec.NONE or header.is_log_append_time or not records:
        return
    newest_ms = max(record.timestamp_ms for record in records)
    if header.max_timestamp_ms != newest_ms:
        tell(f"head: says {header.max_timestamp_ms}, records {newest_ms} {header} log={key}")


class TimeSearches:
    """Searches by time at the end of a run, against the times of all records that are there."""

    def __init__(self, around: Any, rng: random.Random) -> None:
        self._around = around
        self._rng = rng

    async def check(self, cluster: Any, key: LogKey, records: tuple[Seen, ...]) -> None:
        """Ask for some times; the first record at or after each must come."""
        if not records:
            return
        for number in range(6):
            asked_ms = self._rng.choice(records).timestamp_ms + self._rng.choice((-1, 0, 1))
            if number % 2:  # the newest up to some place: whoever believes a head passes it over
                first = records[: self._rng.randint(1, len(records))]
                asked_ms = max(each.timestamp_ms for each in first)
            found = await cluster.run(
                lambda: cluster.leader(key.topic, key.partition),
                lambda node, ms=asked_ms: list_offsets(node, key.topic, {key.partition: ms}),
                topic=key.topic,
            )
            offset = found[key.partition][0]
            fits = [each.offset for each in records if each.timestamp_ms >= asked_ms]
            if not self._is_right(key, offset, fits):
                self._around.violate(
                    f"search: {asked_ms} is found at {offset}, not at {fits[:1]} log={key}"
                )
            self._around.count("searches by time")

    def _is_right(self, key: LogKey, offset: int, fits: list[int]) -> bool:
        if not fits:
            return offset == -1
        # Retention may have deleted the first ones since they were read.
        return offset == fits[0] or (offset in fits and self._is_gone(key, fits[0]))

    def _is_gone(self, key: LogKey, offset: int) -> bool:
        starts = [
            partition.log.log_start_offset
            for host in self._around.hosts
            if (partition := host.broker.replicas.by_id.get((key.topic_id, key.partition)))
        ]
        return any(start > offset for start in starts)
