"""Simulated consumers: some follow a log to its end and never go back, some jump about.

Each answer becomes a `Poll` in the history. What is read is checked to the last byte: batches by
their CRC, records by their content.
"""

import asyncio
import random

from dlog.batch.header import iter_headers
from dlog.batch.records import decode
from dlog.client.node import NodeClient
from dlog.client.partitions import EARLIEST, LATEST, list_offsets
from dlog.errors import (
    CorruptMessageError,
    DlogError,
    OffsetOutOfRangeError,
    ProtocolError,
    error_for,
)
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import TOPIC_ID_VERSION, FetchedPartition, FetchRequest
from dlog.wire.fetch_client import encode_request, parse_response
from tests.simulation.clients import Link, Surroundings, number_of
from tests.simulation.history import FinalLog, LogKey, Poll, Seen
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
        around = self.around
        while around.active:
            key = around.topics.pick(self.rng)
            if key is None:
                await around.sleep_ms(50)
                continue
            turns = self.rng.choice((1, 5, 20))
            for _ in range(turns):
                if not around.active or not await self._turn(key):
                    break
        self.link.close()

    async def _turn(self, key: LogKey) -> bool:
        """Poll once; return whether to go on with this log."""
        offset = self.positions.get(key, 0)
        if not self.plan.tails:
            offset = self.rng.randint(0, max(0, offset))
        try:
            poll = await self.poll(key, offset)
        except OffsetOutOfRangeError:
            return await self._reset(key)
        except DlogError:
            await self.around.sleep_ms(30 + 100 * self.rng.random())
            return False
        if self.plan.tails:
            self._advance(key, poll)
        else:
            self.positions[key] = max(poll.high_watermark - 1, 0)
        # Small answers would make a run long without making it more telling.
        pause_ms = 20 if not poll.records else 5 if len(poll.records) < 5 else 1
        await self.around.sleep_ms(pause_ms * (1 + self.rng.random()))
        return True

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
        if position > end and facts.flush_policy == "always" and not facts.damaged:
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

    async def poll(self, key: LogKey, offset: int) -> Poll:
        """Fetch once and write down what came; raise DlogError."""
        around, plan = self.around, self.plan
        version = plan.version
        name = around.topics.wire_key(key, version, TOPIC_ID_VERSION)
        if name is None:
            version, name = TOPIC_ID_VERSION, key.topic_id
        wanted = (key.partition, -1, offset, -1, -1, plan.partition_bytes_max)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=plan.max_wait_ms,
            min_bytes=plan.min_bytes,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[(name, [wanted])],
            forgotten=[],
            rack_id="",
        )
        node = await self.link.get()
        invoked_ns = around.now_ns()
        fetched, data = await self._exchange(node, version, request)
        if fetched.error_code:
            raise error_for(fetched.error_code, str(key))
        records = self._records(key, offset, data)
        poll = Poll(
            plan.name,
            key,
            invoked_ns,
            around.now_ns(),
            offset,
            fetched.high_watermark,
            max(0, fetched.log_start_offset, self._starts.get(key, 0)),
            tuple(records),
            plan.tails,
        )
        around.history.polls.append(poll)
        around.trace("poll", plan.name, key, offset, len(records), fetched.high_watermark)
        return poll

    async def _exchange(
        self, node: NodeClient, version: int, request: FetchRequest
    ) -> tuple[FetchedPartition, memoryview]:
        name = self.plan.name
        frame, position = await node.exchange(
            ApiKey.FETCH,
            version,
            lambda correlation_id: encode_request(version, correlation_id, name, request),
        )
        response = parse_response(frame, position, len(frame), version)
        if response.error_code:
            raise error_for(response.error_code)
        answers = [answer for _, partitions in response.topics for answer in partitions]
        if len(answers) != 1:
            raise ProtocolError(f"{len(answers)} partitions in the answer")
        fetched, start = answers[0]
        return fetched, frame[start : start + max(0, fetched.records_bytes)]

    def _records(self, key: LogKey, offset: int, data: memoryview) -> list[Seen]:
        seen = []
        damaged = self.around.history.facts_of(key).damaged
        position = 0
        try:
            for position, _ in iter_headers(data, 0, len(data)):
                for record in decode(data, position):
                    number = number_of(record.value)
                    if number is None:
                        raise CorruptMessageError(f"record {record} was written by nobody")
                    if record.offset >= offset:
                        seen.append(Seen(record.offset, number, record.timestamp_ms))
        except CorruptMessageError as error:
            if not damaged:
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
            await self._turn(key)

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
            poll = await self.poll(key, offset)
            if not poll.records:
                raise ProtocolError(f"nothing at {offset} of {end}")
            records += poll.records
            offset = records[-1].offset + 1
        return FinalLog(key, start, end, tuple(records))
