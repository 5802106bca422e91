"""Simulated consumers: some follow a log to its end and never go back, some jump about.

Each answer becomes a `Poll` in the history. What is read is checked to the last byte: batches by
their CRC, records by their content.
"""

import asyncio
import random

from dlog.batch.header import iter_headers
from dlog.batch.records import decode
from dlog.client.cluster.node import NodeClient
from dlog.client.cluster.partition_calls import list_offsets
from dlog.compression import Codec
from dlog.errors import (
    CorruptMessageError,
    DlogError,
    OffsetOutOfRangeError,
    ProtocolError,
    WireError,
    error_for,
)
from dlog.offset_specs import EARLIEST, LATEST, MAX_TIMESTAMP
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import TOPIC_ID_VERSION, FetchedPartition, FetchRequest
from dlog.wire.fetch_client import encode_request, parse_response
from tests.histories.history import FinalLog, LogKey, Poll, Seen, TimeSeen
from tests.simulation.clients import Link, Surroundings, number_of
from tests.simulation.loop import SimLoop
from tests.simulation.plan import ConsumerPlan

PATIENCE_S = 30.0


class Consumer:
    """One consumer; `run` ends when the plan's time is over, `catch_up` reads to the ends."""

    def __init__(self, around: Surroundings, plan: ConsumerPlan, loop: SimLoop) -> None:
        self.around = around
        self.plan = plan
        self.loop = loop
        self.rng = random.Random(f"{around.plan.seed}/{plan.name}")
        self.link = Link(around, plan.name, loop, plan.max_wait_ms / 1000 + 3.0, 1)
        self.positions: dict[LogKey, int] = {}
        # Log start offsets that were told; old versions of Fetch do not tell them.
        self._starts: dict[LogKey, int] = {}

    async def run(self) -> None:
        """Poll until the plan's time is over."""
        around, rng = self.around, self.rng
        while around.active:
            keys = self._pick()
            if not keys:
                await around.sleep_ms(50)
                continue
            if not self.plan.tails and rng.random() < 0.2:
                await self._search_time(keys[0])
            turns = rng.choice((1, 5, 20))
            for _ in range(turns):
                if not around.active or not await self._turn(keys):
                    break
        self.link.close()

    def _pick(self) -> list[LogKey]:
        picked = [self.around.topics.pick(self.rng) for _ in range(self.plan.partitions)]
        return list(dict.fromkeys(key for key in picked if key is not None))

    async def _turn(self, keys: list[LogKey]) -> bool:
        """Poll once; return whether to go on with these logs."""
        offsets = {key: self.positions.get(key, 0) for key in keys}
        if not self.plan.tails:
            offsets = {key: self.rng.randint(0, max(0, at)) for key, at in offsets.items()}
        try:
            answers = await self.poll(offsets)
        except DlogError:
            await self.around.sleep_ms(30 + 100 * self.rng.random())
            return False
        whole = True
        count = 0
        for key, answer in answers.items():
            if isinstance(answer, OffsetOutOfRangeError):
                whole = await self._reset(key) and whole
            elif isinstance(answer, WireError):
                whole = False
            else:
                count += len(answer.records)
                if self.plan.tails:
                    self._advance(key, answer)
                else:
                    self.positions[key] = max(answer.high_watermark - 1, 0)
        # Small answers would make a run long without making it more telling.
        pause_ms = 30 if not whole else 20 if not count else 5 if count < 5 else 1
        await self.around.sleep_ms(pause_ms * (1 + self.rng.random()))
        return whole

    async def _search_time(self, key: LogKey) -> None:
        """Ask which record is the first of a time, or the newest."""
        around = self.around
        asked_ms = around.timestamp_ms() - self.rng.randrange(2000)
        asked_ms = self.rng.choice((asked_ms, asked_ms, MAX_TIMESTAMP))
        invoked_ns = around.now_ns()
        try:
            node = await self.link.get()
            found = await list_offsets(node, key.topic, {key.partition: asked_ms})
        except DlogError:
            return
        offset, timestamp_ms = found[key.partition]
        if asked_ms >= 0 and not around.topics.churning(key):
            around.history.times.append(
                TimeSeen(key, invoked_ns, around.now_ns(), asked_ms, offset, timestamp_ms)
            )

    def _advance(self, key: LogKey, poll: Poll) -> None:
        if poll.records:
            self.positions[key] = poll.records[-1].offset + 1

    async def _reset(self, key: LogKey) -> bool:
        """Go to the first offset, as `auto.offset.reset=earliest` does, or back to the end."""
        try:
            ends = await self._ends(key)
        except DlogError:
            await self.around.sleep_ms(50)
            return False
        start, end = ends
        position = self.positions.get(key, 0)
        facts = self.around.history.facts_of(key)
        weak = facts.flush_policy != "always" or facts.damaged or facts.deleted
        # A name may mean the topic's next life by now.
        if position > end and not weak and not self.around.topics.churning(key):
            self.around.violation(f"watermark: the end is {end} after {position} log={key}")
        self._starts[key] = start
        self.positions[key] = start if position < start else min(position, end)
        return True

    async def _ends(self, key: LogKey) -> tuple[int, int]:
        node = await self.link.get()
        found = []
        for timestamp in (EARLIEST, LATEST):
            offsets = await list_offsets(node, key.topic, {key.partition: timestamp})
            found.append(offsets[key.partition][0])
        return found[0], found[1]

    async def poll(self, offsets: dict[LogKey, int]) -> dict[LogKey, Poll | WireError]:
        """Fetch once and write down what came of each log; raise DlogError for the whole."""
        around, plan = self.around, self.plan
        version = plan.version
        if any(around.topics.wire_key(key, version, TOPIC_ID_VERSION) is None for key in offsets):
            version = max(version, TOPIC_ID_VERSION)
        request = self._request(version, offsets)
        node = await self.link.get()
        invoked_ns = around.now_ns()
        answers = await self._exchange(node, version, request)
        if [answer[0].partition for answer in answers] != [key.partition for key in offsets]:
            raise ProtocolError(f"{len(answers)} answers to {len(offsets)} partitions")
        found: dict[LogKey, Poll | WireError] = {}
        for (key, offset), (fetched, data) in zip(offsets.items(), answers, strict=True):
            if fetched.error_code:
                found[key] = error_for(fetched.error_code, str(key))
                continue
            try:
                records = tuple(self._records(key, offset, data))
            except CorruptMessageError as error:
                found[key] = error
                continue
            log_start = max(0, fetched.log_start_offset, self._starts.get(key, 0))
            poll = Poll(
                plan.name,
                key,
                invoked_ns,
                around.now_ns(),
                offset,
                fetched.high_watermark,
                log_start,
                records,
                plan.tails,
            )
            found[key] = poll
            around.history.polls.append(poll)
            count = len(poll.records)
            around.trace("poll", plan.name, key, offset, count, fetched.high_watermark)
        return found

    def _request(self, version: int, offsets: dict[LogKey, int]) -> FetchRequest:
        size = self.plan.partition_bytes_max
        topics = []
        for key, offset in offsets.items():
            name = self.around.topics.wire_key(key, version, TOPIC_ID_VERSION)
            topics.append((name or key.topic, [(key.partition, -1, offset, -1, -1, size)]))
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=self.plan.max_wait_ms,
            min_bytes=self.plan.min_bytes,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten=[],
            rack_id="",
        )

    async def _exchange(
        self, node: NodeClient, version: int, request: FetchRequest
    ) -> list[tuple[FetchedPartition, memoryview]]:
        name = self.plan.name
        frame, position = await node.exchange(
            ApiKey.FETCH,
            version,
            lambda correlation_id: encode_request(version, correlation_id, name, request),
        )
        response = parse_response(frame, position, len(frame), version)
        if response.error_code:
            raise error_for(response.error_code)
        return [
            (fetched, frame[start : start + max(0, fetched.records_bytes)])
            for _, partitions in response.topics
            for fetched, start in partitions
        ]

    def _records(self, key: LogKey, offset: int, data: memoryview) -> list[Seen]:
        seen = []
        facts = self.around.history.facts_of(key)
        position = 0
        try:
            for position, header in iter_headers(data, 0, len(data)):
                records = decode(data, position)
                newest_ms = max(record.timestamp_ms for record in records)
                is_checked = header.codec is Codec.NONE or facts.checked
                if is_checked and header.max_timestamp_ms != newest_ms:
                    self.around.violation(
                        f"head: {header.max_timestamp_ms} is said to be the largest timestamp"
                        f" from {header.base_offset} on, {newest_ms} is log={key}"
                    )
                for record in records:
                    number = number_of(record.value)
                    if number is None:
                        raise CorruptMessageError(f"record {record} was written by nobody")
                    if record.offset >= offset:
                        seen.append(Seen(record.offset, number, record.timestamp_ms))
        except CorruptMessageError as error:
            if not facts.damaged:
                self.around.violation(
                    f"garbage: at offset {offset} byte {position} of {len(data)}: {error} log={key}"
                )
            raise
        if not seen and len(data):
            self.around.violation(f"garbage: {len(data)} bytes without a record log={key}")
        return seen

    # -- the end of the run

    async def catch_up(self, key: LogKey, end: int) -> None:
        """Follow a log from where this consumer is to `end`; all has healed."""
        deadline_s = self.loop.time() + PATIENCE_S
        while self.positions.get(key, 0) < end:
            if self.loop.time() > deadline_s:
                at = self.positions.get(key, 0)
                self.around.violation(f"unseen: {self.plan.name} is at {at} of {end} log={key}")
                return
            await self._turn([key])

    async def read_whole(self, key: LogKey) -> FinalLog | None:
        """Read all of a log; None when that is not possible for long."""
        deadline_s = self.loop.time() + PATIENCE_S
        while self.loop.time() < deadline_s:
            try:
                return await self._read_whole(key)
            except DlogError as error:
                self.around.trace("retry", key, repr(error))
                await asyncio.sleep(0.2)
        return None

    async def _read_whole(self, key: LogKey) -> FinalLog:
        start, end = await self._ends(key)
        records: list[Seen] = []
        offset = start
        while offset < end:
            poll = (await self.poll({key: offset}))[key]
            if isinstance(poll, WireError):
                raise poll
            if not poll.records:
                raise ProtocolError(f"nothing at {offset} of {end}")
            records += poll.records
            offset = records[-1].offset + 1
        return FinalLog(key, start, end, tuple(records))
