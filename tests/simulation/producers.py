"""Simulated producers: plain ones, which may write twice, and idempotent ones, which must not.

Each batch becomes a `Send` in the history before its first byte leaves, and ends as ok, refused
(nothing was written, for sure) or unknown.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from dlog.batch.header import CRC_POSITION, HEADER_BYTES
from dlog.batch.records import RECORDS_BYTES_MAX, Record, encode
from dlog.client.cluster.node import NodeClient
from dlog.client.producing.producer_id import init_producer_id
from dlog.compression import Codec, compress, decompress
from dlog.errors import DlogError, ProtocolError, error_for
from dlog.transport import Encode
from dlog.wire.apis import ApiKey
from dlog.wire.produce import TOPIC_ID_VERSION
from dlog.wire.produce_client import encode_request, parse_response
from tests.fakes.batches import with_head, with_records
from tests.histories.history import LogKey, Outcome, Send
from tests.simulation.clients import Link, Surroundings, make_value
from tests.simulation.loop import SimLoop
from tests.simulation.plan import ProducerPlan

OK, DUPLICATE_SEQUENCE, OUT_OF_ORDER = 0, 46, 45
UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID = 3, 100
# Said before anything is appended: too large, corrupt, bad record, bad timestamp, too few replicas,
# sequence out of order, old producer epoch, unknown producer, no transactions.
REFUSALS = (10, 2, 87, 32, 19, OUT_OF_ORDER, 47, 59, 53)
PATIENCE_S = 20.0


@dataclass(slots=True)
class Batch:
    """A send, its bytes, and whether an attempt may have worked unheard."""

    send: Send
    data: bytes
    doubtful: bool = False
    code: int = -1
    numbers_sent: int = field(default=0)


class Producer:
    """One producer; `run` ends when the plan's time is over and all its calls have ended."""

    def __init__(self, around: Surroundings, plan: ProducerPlan, loop: SimLoop) -> None:
        self.around = around
        self.plan = plan
        self.loop = loop
        self.rng = random.Random(f"{around.plan.seed}/{plan.name}")
        self._lies = random.Random(f"{around.plan.seed}/{plan.name}/lies")
        self.link = Link(around, plan.name, loop, plan.timeout_ms / 1000 + 2.0, plan.inflight)

    async def run(self) -> None:
        """Send until the plan's time is over."""
        work = self._lane if self.plan.idempotent else self._plain
        lanes = range(self.plan.lanes if self.plan.idempotent else self.plan.inflight)
        tasks = [self.loop.create_task(work(), name=f"{self.plan.name}/{lane}") for lane in lanes]
        for task in tasks:
            await task
        self.link.close()

    # -- batches

    def batch(self, key: LogKey, session: tuple[int, int, int] | None) -> Batch:
        """Make a batch of new records, and note that it is wanted."""
        plan, rng, around = self.plan, self.rng, self.around
        count = plan.records_max if plan.uniform else rng.randint(1, plan.records_max)
        numbers = tuple(next(around.numbers) for _ in range(count))
        records = []
        timestamp_ms = around.timestamp_ms()
        for number in numbers:
            if plan.uniform:
                value = make_value(number, max(20, plan.value_bytes_max // 4))
                records.append(Record(None, value, (), timestamp_ms))
                continue
            headers = (("h", b"x"),) if rng.random() < 0.2 else ()
            record_key = b"k%d" % (number % 7) if rng.random() < 0.5 else None
            value = make_value(number, rng.randint(1, plan.value_bytes_max))
            records.append(Record(record_key, value, headers, timestamp_ms - rng.randrange(50)))
        producer_id, epoch, sequence = session if session is not None else (-1, -1, -1)
        data = encode(
            records,
            codec=Codec(plan.codec),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        send = Send(plan.name, key, numbers, plan.acks, around.now_ns(), session)
        around.history.sends.append(send)
        return Batch(send, bytes(self._misstated(data, timestamp_ms)))

    def _misstated(self, data: bytearray, newest_ms: int) -> bytearray:
        """Let the head of a batch claim another largest timestamp, as many clients do."""
        claims = {"none": -1, "zero": 0, "early": newest_ms - 5_000, "late": newest_ms + 5_000}
        lies = self._lies.choice(tuple(claims)) if self.plan.lies == "any" else self.plan.lies
        return with_head(data, max_timestamp_ms=claims[lies]) if lies else data

    def _finish(self, batch: Batch, outcome: Outcome, error: str = "") -> None:
        send = batch.send
        if outcome is Outcome.REFUSED and batch.doubtful:
            outcome = Outcome.UNKNOWN
        send.completed_ns, send.outcome, send.error = self.around.now_ns(), outcome, error
        self.around.trace(
            "send", send.client, send.key, send.numbers[0], outcome.value, send.base_offset, error
        )

    async def _exchange(self, node: NodeClient, batches: list[Batch]) -> None:
        """Send batches of different logs in one request; each gets its `code`, or a DlogError."""
        plan, topics = self.plan, self.around.topics
        for batch in batches:
            batch.code = -1
        version = plan.version
        wanted = []
        for batch in batches:
            name = topics.wire_key(batch.send.key, version, TOPIC_ID_VERSION)
            if name is None:
                version = TOPIC_ID_VERSION
        for batch in batches:
            name = topics.wire_key(batch.send.key, version, TOPIC_ID_VERSION)
            assert name is not None
            wanted.append((name, [(batch.send.key.partition, batch.data)]))
        for batch in batches:
            batch.send.attempts += 1
            batch.doubtful = True

        def encode_now(correlation_id: int) -> bytes:
            return encode_request(
                version, correlation_id, plan.name, plan.acks, plan.timeout_ms, wanted
            )

        if plan.acks == 0:
            await node.connection.send(encode_now)
            return
        await self._hear(node, version, encode_now, batches)

    async def _hear(
        self, node: NodeClient, version: int, encode_now: Encode, batches: list[Batch]
    ) -> None:
        frame, position = await node.exchange(ApiKey.PRODUCE, version, encode_now)
        response = parse_response(frame, position, len(frame), version)
        answers = [answer for _, partitions in response.topics for answer in partitions]
        if len(answers) != len(batches):
            raise ProtocolError(f"{len(answers)} answers to {len(batches)} batches")
        for batch, answer in zip(batches, answers, strict=True):
            index, batch.code, batch.send.base_offset, _, _, _ = answer
            if index != batch.send.key.partition:
                raise ProtocolError(f"answered {index} instead of {batch.send.key}")
            if batch.code in REFUSALS:
                # This attempt wrote nothing; an earlier one whose answer is lost may have.
                batch.doubtful = batch.send.attempts > 1

    # -- plain producers

    async def _plain(self) -> None:
        around, rng, plan = self.around, self.rng, self.plan
        while around.active:
            await around.sleep_ms(plan.interval_ms * 2 * rng.random())
            keys: dict[LogKey, None] = {}
            for _ in range(plan.lanes):
                key = around.topics.pick(rng)
                if key is not None:
                    keys[key] = None
            # Topics once each: the answer would otherwise be grouped in another way than asked.
            chosen = {key.topic: key for key in keys}
            if chosen and rng.random() < 0.03:
                await self._send_bad(next(iter(chosen.values())))
            elif chosen:
                await self.send_plainly([self.batch(key, None) for key in chosen.values()])

    async def send_plainly(self, batches: list[Batch]) -> None:
        """Send until each batch is answered for good, or patience ends."""
        deadline_s = self.loop.time() + PATIENCE_S
        while batches:
            error = ""
            try:
                await self._exchange(await self.link.get(), batches)
            except DlogError as caught:
                error = caught.args[0] if caught.args else type(caught).__name__
            if self.plan.acks == 0:
                for batch in batches:
                    self._finish(batch, Outcome.UNKNOWN, error)
                return
            batches = [batch for batch in batches if not self._settle(batch, error)]
            if batches and self.loop.time() > deadline_s:
                for batch in batches:
                    self._finish(batch, Outcome.UNKNOWN, "gave up")
                return
            if batches:
                await self.around.sleep_ms(10 + 50 * self.rng.random())

    def _settle(self, batch: Batch, error: str) -> bool:
        """Finish a plain batch if it is over; else it is sent again."""
        code = batch.code
        if not error and code == OK:
            self._finish(batch, Outcome.OK)
        elif not error and code in REFUSALS:
            self._finish(batch, Outcome.REFUSED, error_for(code).name)
        elif batch.send.attempts > self.plan.retries or code in (UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID):
            self._finish(batch, Outcome.UNKNOWN, error or error_for(code).name)
        else:
            return False
        return True

    async def _send_bad(self, key: LogKey) -> None:
        """Send what must be refused."""
        batch = self.batch(key, None)
        data = bytearray(batch.data)
        what = self.rng.choice(("crc", "magic", "count", "large", "transactional"))
        is_checked = self.plan.codec == Codec.NONE or self.around.history.facts_of(key).checked
        if is_checked and self._lies.random() < 0.5:
            what, data = self._nonsense(data, len(batch.send.numbers))
        elif what == "crc":
            data[CRC_POSITION] ^= 1
        elif what == "magic":
            data[16] = 1
        elif what == "count":
            data[60] ^= 2
        elif what == "large":
            data += bytes(300_000)
        else:
            data[22] |= 0x10
        batch.data = bytes(data)
        try:
            await self._exchange(await self.link.get(), [batch])
        except DlogError:
            # The refusal was lost, or the node closed the connection; nothing may be there.
            self._finish(batch, Outcome.REFUSED, f"bad {what}")
            batch.send.outcome = Outcome.REFUSED
            return
        if batch.code == OK and self.plan.acks != 0:
            self.around.violation(f"accepted: a batch with a bad {what} by {batch.send.key}")
        batch.doubtful = False
        self._finish(batch, Outcome.REFUSED, f"bad {what}")

    def _nonsense(self, data: bytearray, count: int) -> tuple[str, bytearray]:
        """Return a batch with a checksum that fits, which no reader can read."""
        what = self._lies.choice(("larger count", "smaller count", "record"))
        if what == "record":
            codec = Codec(self.plan.codec)
            records = bytes(decompress(codec, data[HEADER_BYTES:], RECORDS_BYTES_MAX))
            return what, with_records(data, compress(codec, records[:-1]), count)
        claimed = count - 1 if what == "smaller count" and count > 1 else count + 1
        return what, with_head(data, record_count=claimed, last_offset_delta=claimed - 1)

    # -- idempotent producers

    async def _lane(self) -> None:
        """Write to one log after another, each time as a new producer."""
        while self.around.active:
            key = self.around.topics.pick(self.rng)
            session = await self._new_session() if key is not None else None
            if key is not None and session is not None:
                await _Session(self, key, session).run()
            await self.around.sleep_ms(50)

    async def _new_session(self) -> tuple[int, int] | None:
        try:
            node = await self.link.get()
            session = await init_producer_id(node)
        except DlogError:
            return None
        if session in self.around.sessions_seen:
            self.around.violation(f"producer-id: {session} was given twice")
        self.around.sessions_seen.add(session)
        return session


class _Session:
    """One producer id on one log: several batches in flight, sent again in order until answered."""

    def __init__(self, producer: Producer, key: LogKey, session: tuple[int, int]) -> None:
        self._producer = producer
        self._key = key
        self._session = session
        self._sequence = 0
        self._unanswered: deque[Batch] = deque()
        self._acknowledged_all = True

    async def run(self) -> None:
        """Send rounds of batches until the time is over, or the session cannot go on."""
        producer, rng = self._producer, self._producer.rng
        around, plan = producer.around, producer.plan
        rounds = rng.choice((3, 20, 1000))
        deadline_s = producer.loop.time() + PATIENCE_S
        while rounds > 0 or self._unanswered:
            if around.active and rounds > 0 and not self._topic_is_going():
                rounds -= 1
                while len(self._unanswered) < plan.inflight:
                    self._append()
            else:
                rounds = 0
            if not self._unanswered:
                return
            whole = await self._round()
            if whole is None or producer.loop.time() > deadline_s:
                self._abandon()
                return
            if whole:
                deadline_s = producer.loop.time() + PATIENCE_S
            await around.sleep_ms(plan.interval_ms * 2 * rng.random() if whole else 30)

    def _topic_is_going(self) -> bool:
        topics = self._producer.around.topics.live
        return not any(
            topic.topic_id == self._key.topic_id and not topic.deleting for topic in topics
        )

    def _append(self) -> None:
        batch = self._producer.batch(self._key, (*self._session, self._sequence))
        self._sequence += len(batch.send.numbers)
        self._unanswered.append(batch)

    async def _round(self) -> bool | None:
        """Send all that is unanswered; return whether all went well, None when it is over."""
        loop = self._producer.loop
        batches = list(self._unanswered)
        try:
            # One connection for all: a batch must never overtake the one before.
            node = await self._producer.link.get()
        except DlogError:
            return False
        tasks = [loop.create_task(self._producer._exchange(node, [batch])) for batch in batches]
        if self._producer.rng.random() < self._producer.plan.hangup_share:
            loop.call_later(self._producer.rng.random() * 0.01, node.close)
        failed = False
        over = False
        for batch, task in zip(batches, tasks, strict=True):
            try:
                await task
            except DlogError:
                failed = True
                continue
            over = over or self._hear(batch, failed)
            failed = failed or batch.code not in (OK, DUPLICATE_SEQUENCE)
        return None if over else not failed

    def _hear(self, batch: Batch, failed: bool) -> bool:
        """Take one answer; return whether the session is over."""
        code = batch.code
        if code in (OK, DUPLICATE_SEQUENCE):
            if code == DUPLICATE_SEQUENCE:
                batch.send.base_offset = -1
            self._unanswered.remove(batch)
            self._producer._finish(batch, Outcome.OK)
            return False
        if code == OUT_OF_ORDER and failed:
            return False
        if code == OUT_OF_ORDER:
            self._judge_out_of_order(batch)
        return code in REFUSALS or code in (UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID)

    def _judge_out_of_order(self, batch: Batch) -> None:
        """All before the batch was acknowledged, so the node must know it."""
        around = self._producer.around
        facts = around.history.facts_of(self._key)
        # A node that is killed may forget producers whose batches are all trimmed away.
        trimmed = facts.retention or any(trim.key == self._key for trim in around.history.trims)
        if facts.flush_policy == "always" and not facts.damaged and not trimmed:
            around.violation(
                f"sequence: {batch.send.numbers} of {batch.send.client} as {batch.send.session}"
                f" refused as out of order, all before was acknowledged log={self._key}"
            )

    def _abandon(self) -> None:
        for batch in self._unanswered:
            known = batch.code in REFUSALS
            outcome = Outcome.REFUSED if known else Outcome.UNKNOWN
            self._producer._finish(batch, outcome, f"abandoned after {batch.code}")
        self._unanswered.clear()
