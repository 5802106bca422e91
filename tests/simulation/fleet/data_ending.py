"""The end of a run, as users of its data see it: everything can be written, read, and is the same.

All has healed by now. Each partition takes a record from all its replicas, each log is read once
from its leader, consumers reach the ends, and all replicas hold the same bytes.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dlog.batch.header import iter_headers, verify_crc
from dlog.batch.records import decode
from dlog.client.cluster.partition_calls import fetch, list_offsets
from dlog.client.producer import Producer
from dlog.errors import CorruptMessageError, DlogError, OffsetOutOfRangeError
from dlog.offset_specs import EARLIEST, LATEST
from tests.histories.history import FinalLog, LogKey, Outcome, Seen, Send
from tests.simulation.clients import make_value, number_of
from tests.simulation.fleet.data_clients import DataClients, DataConsumer
from tests.simulation.fleet.data_liars import TimeSearches, check_head

T = TypeVar("T")

READ_BYTES = 1 << 16

LEVEL_MS_MAX = 10_000
"""A replica that has not caught up by then is stuck."""


class DataEnding:
    """Does it; `run` ends when all is done, or raises what went wrong."""

    def __init__(self, clients: DataClients, consumers: list[DataConsumer]) -> None:
        self._clients = clients
        self._around = clients.around
        self._consumers = consumers
        self._rng = random.Random(f"{clients.plan.seed}/ending")
        self._searches = TimeSearches(self._around, random.Random(f"{clients.plan.seed}/searches"))
        self._furthest: dict[tuple[str, LogKey], int] = {}

    @property
    def progress(self) -> int:
        """How much is done; it grows as long as nothing is stuck, and never for ever."""
        return sum(self._furthest.values())

    def _reach(self, work: str, key: LogKey, place: int = 1) -> None:
        """Note how far some work on a log is. To do a part of it again is no progress."""
        self._furthest[work, key] = max(place, self._furthest.get((work, key), 0))

    async def run(self) -> None:
        """Write, read, follow, compare."""
        logs = [key for life in self._clients.live() for key in life.logs() if self._is_led(key)]
        cluster = self._clients.cluster("ending", self._rng)
        await self._write(cluster, logs)
        finals = self._around.history.finals
        for key in logs:
            finals[key] = await self._read(cluster, key)
            await self._searches.check(cluster, key, finals[key].records)
        ends = {key: final.high_watermark for key, final in finals.items()}
        for consumer in self._consumers:
            await consumer.catch_up(ends, partial(self._reach, consumer.plan.name))
        for key in logs:
            finals[key] = await self._as_left(cluster, finals[key])
        await cluster.close()
        for key in logs:
            await self._compare(key)

    def _is_led(self, key: LogKey) -> bool:
        """Whether there is a leader: without one only where no disk is left (`wholeness`)."""
        topic = self._around.registry.newest.topics_by_id[key.topic_id]
        led: bool = topic.partitions[key.partition].has_leader
        return led

    async def _write(self, cluster: Any, logs: list[LogKey]) -> None:
        producer = Producer(
            cluster,
            acks="all",
            rng=random.Random(self._rng.getrandbits(64)),
            timestamp_ns=lambda: self._clients.timestamp_ms() * 1_000_000,
            delivery_timeout_ms=int(10_000 * self._clients.plan.pace),
        )
        await producer.start()
        for key in logs:
            number = next(self._clients.numbers)
            send = Send("ending", key, (number,), -1, self._clients.now_ns(), (0, 0, 0), 1)
            self._around.history.sends.append(send)
            try:
                value = make_value(number, 50)
                written = await producer.write(key.topic, value, partition=key.partition)
            except DlogError as error:
                self._around.violate(
                    f"liveness: nothing can be appended: {error!r} {error.__cause__!r} log={key}"
                )
                continue
            send.completed_ns, send.base_offset = self._clients.now_ns(), written.offset
            send.outcome = Outcome.OK
            self._reach("written", key)
        await producer.close()

    async def _read(self, cluster: Any, key: LogKey) -> FinalLog:
        """Read all of a log from its leader."""
        while True:
            try:
                return await self._read_whole(cluster, key)
            except OffsetOutOfRangeError:
                continue  # retention was faster

    async def _read_whole(self, cluster: Any, key: LogKey) -> FinalLog:
        def ask(operation: Callable[[Any], Awaitable[T]]) -> Awaitable[T]:
            # Each request has a deadline of its own: a long log of small segments takes many.
            leader = partial(cluster.leader, key.topic, key.partition)
            answer: Awaitable[T] = cluster.run(leader, operation, topic=key.topic)
            return answer

        ends = []
        for timestamp in (EARLIEST, LATEST):
            wanted = {key.partition: timestamp}
            found = await ask(partial(list_offsets, topic=key.topic, timestamps_ms=wanted))
            ends.append(found[key.partition][0])
        records: list[Seen] = []
        offset = ends[0]
        while offset < ends[1]:
            piece = partial(
                fetch,
                topic=key.topic,
                partition=key.partition,
                offset=offset,
                partition_max_bytes=READ_BYTES,
            )
            got = await ask(piece)
            data = got.records
            for position, header in iter_headers(data, 0, len(data)):
                if not verify_crc(data, position, header.batch_bytes):
                    self._around.violate(f"rot: {header} is given out damaged log={key}")
                piece_records = decode(data, position)
                check_head(header, piece_records, self._around.violate, key)
                for record in piece_records:
                    number = number_of(record.value)
                    if number is None:
                        self._around.violate(f"garbage: {record} log={key}")
                    elif record.offset >= offset:
                        records.append(Seen(record.offset, number, record.timestamp_ms))
            if not records or records[-1].offset < offset:
                self._around.violate(f"liveness: nothing at {offset} of {ends[1]} log={key}")
                break
            offset = records[-1].offset + 1
            self._reach("read", key, offset)
        return FinalLog(key, ends[0], ends[1], tuple(records))

    async def _as_left(self, cluster: Any, final: FinalLog) -> FinalLog:
        """Return what is left of it: the next leader may be one that alone had heard of a trim."""
        key = final.key
        found = await cluster.run(
            lambda: cluster.leader(key.topic, key.partition),
            lambda node: list_offsets(node, key.topic, {key.partition: EARLIEST}),
            topic=key.topic,
        )
        start = max(final.log_start_offset, found[key.partition][0])
        records = tuple(each for each in final.records if each.offset >= start)
        return replace(final, log_start_offset=start, records=records)

    async def _until_level(self, key: LogKey) -> None:
        """Wait until all replicas end at the same offset: one that lags is not in sync for that."""
        for _ in range(LEVEL_MS_MAX):
            replicas = [host.broker.replicas.by_id for host in self._around.hosts]
            found = [each.get((key.topic_id, key.partition)) for each in replicas]
            if len({each.log.log_end_offset for each in found if each is not None}) <= 1:
                return
            await self._around.sleep_ms(1)

    async def _compare(self, key: LogKey) -> None:
        """Compare the bytes of all replicas, from where all of them begin."""
        await self._until_level(key)
        self._reach("level", key)
        found: dict[str, dict[int, bytes]] = {}
        for host in self._around.hosts:
            partition = host.broker.replicas.by_id.get((key.topic_id, key.partition))
            if partition is not None:
                work = _read_replica(host, partition.log)
                task = asyncio.Task(work, loop=host.loop, name="compare")
                while not task.done():
                    await self._around.sleep_ms(1)
                found[host.name] = task.result()
                self._reach(f"compared on {host.name}", key)
        for name, batches in found.items():
            for other, others in found.items():
                if name >= other:
                    continue
                first = max(min(batches, default=0), min(others, default=0))
                mine = {at: data for at, data in batches.items() if at >= first}
                theirs = {at: data for at, data in others.items() if at >= first}
                if mine != theirs:
                    at = min(x for x in {**mine, **theirs} if mine.get(x) != theirs.get(x))
                    self._around.violate(
                        f"LogsAgree: {name} and {other} differ at {at} in the end log={key}"
                    )
        self._around.trace("replicas", key, {name: len(each) for name, each in found.items()})


async def _read_replica(host: Any, log: Any) -> dict[int, bytes]:
    """Read all batches of a replica, on its node; return their bytes by base offset."""
    batches: dict[int, bytes] = {}
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        if offset < log.log_start_offset:  # retention was faster
            batches.clear()
            offset = log.log_start_offset
            continue
        read = log.read(offset, READ_BYTES, end)
        if read is None:
            await log.locate(offset)
            continue
        for piece in read.ranges:
            data = await _bytes_of(host, piece)
            for position, header in iter_headers(data, 0, len(data)):
                if not verify_crc(data, position, header.batch_bytes):
                    raise CorruptMessageError(f"{header} of {log.topic_partition} at {host.name}")
                batch = bytes(data[position : position + header.batch_bytes])
                batches[header.base_offset] = batch
                offset = header.next_offset
    return batches


async def _bytes_of(host: Any, piece: Any) -> bytearray:
    data = bytearray()
    piece.segment.acquire()
    while len(data) < piece.length:
        position, left = piece.position + len(data), piece.length - len(data)
        view = piece.segment.memory_view(position, left)
        if view is not None:
            data += view
            continue
        future = host.loop.create_future()
        engine = host.process.engine
        length = min(left, engine.read_length_max)
        engine.read(piece.segment.file, position, length, future.set_result)
        found = await future
        if isinstance(found, OSError):
            raise found
        data += found.view
        found.release()
    piece.segment.release()
    return data
