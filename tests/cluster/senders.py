"""Producers for a cluster that is harmed: they write numbers and note what they were told.

Two kinds: `dlog.client`, and confluent-kafka, which knows nothing of dlog. Both with the settings
that they come with, apart from what a `Manner` says.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import confluent_kafka as librdkafka

from dlog.client.futures import Delivery, RefusedError, Written
from dlog.client.producer import Producer
from dlog.errors import DlogError
from tests.histories.files import Recorder
from tests.histories.history import LogKey, Outcome, Send

SENDERS_MAX = 100
PENDING_MAX = 60  # of one client in one partition
PACE_S = (0.005, 0.06)
BURST = (1, 1, 1, 2, 5, 20)
FLUSH_S = 330.0  # longer than a delivery may take: librdkafka gives a record 300 s
PADDING = b" " + b"x" * 2000


@dataclass(frozen=True, slots=True)
class Manner:
    """How a producer writes."""

    idempotent: bool
    acks: int = -1
    compression: str = "none"


@dataclass(slots=True)
class SendCounts:
    """How the sends of all producers ended."""

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def reason(self, text: str) -> None:
        """Count why something did not go well."""
        self.reasons[text] = self.reasons.get(text, 0) + 1


class SendLog:
    """Where producers note what they were told; one for all."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.counts = SendCounts()
        self.last_acknowledged: dict[LogKey, Send] = {}
        """Of each log the one that was asked for last."""
        self.gap_s_max = 0.0
        """The longest that an acknowledged record took."""
        self.progress = asyncio.Event()

    def over(self, send: Send, outcome: Outcome, offset: int = -1, error: str = "") -> None:
        """Note how a send ended."""
        send.completed_ns = time.monotonic_ns()
        send.outcome, send.base_offset, send.error = outcome, offset, error
        self.recorder.add(send)
        if outcome is Outcome.OK:
            self._acknowledged(send)
        elif outcome is Outcome.REFUSED:
            self.counts.refused += 1
        else:
            self.counts.unknown += 1
        if error:
            self.counts.reason(error)

    def _acknowledged(self, send: Send) -> None:
        self.counts.acknowledged += 1
        self.gap_s_max = max(self.gap_s_max, (send.completed_ns - send.invoked_ns) / 1e9)
        last = self.last_acknowledged.get(send.key)
        if last is None or last.invoked_ns < send.invoked_ns:
            self.last_acknowledged[send.key] = send
        self.progress.set()

    async def until_acknowledged(
        self, keys: Sequence[LogKey], since_ns: int, patience_s: float
    ) -> None:
        """Return when each log has acknowledged something that was asked for since then."""
        async with asyncio.timeout(patience_s):
            while silent := [key for key in keys if not self._is_heard(key, since_ns)]:
                self.progress.clear()
                try:
                    await self.progress.wait()
                except asyncio.CancelledError:
                    print(f"silent: {', '.join(map(str, silent))}", flush=True)
                    raise

    def _is_heard(self, key: LogKey, since_ns: int) -> bool:
        last = self.last_acknowledged.get(key)
        return last is not None and last.invoked_ns >= since_ns


class Sender:
    """One producer. Life: `run` until `stop`."""

    def __init__(
        self, index: int, manner: Manner, log: SendLog, rng: random.Random, keys: Sequence[LogKey]
    ) -> None:
        kind = "idempotent" if manner.idempotent else f"plain{manner.acks}"
        self.name = f"{type(self).__name__.lower()}-{kind}-{index}"
        self.index = index
        self.manner = manner
        self.log = log
        self.rng = rng
        self.pending: dict[LogKey, int] = dict.fromkeys(keys, 0)
        self.is_stopping = False
        self._sent = 0

    def stop(self) -> None:
        """Send nothing more; `run` ends when all outcomes are known."""
        self.is_stopping = True

    async def run(self) -> None:
        """Send one burst after the other."""
        raise NotImplementedError

    def draw(self) -> LogKey | None:
        """Return where the next burst goes; None while nothing more may be under way."""
        free = [key for key, count in self.pending.items() if count < PENDING_MAX]
        return self.rng.choice(free) if free else None

    def next_send(self, key: LogKey) -> tuple[Send, bytes]:
        """Return a record that is about to be sent, and its value."""
        number = self._sent * SENDERS_MAX + self.index
        self._sent += 1
        self.pending[key] += 1
        # A repetition by a plain producer may be there twice, and how often it tries is not told.
        session = (self.index, 0, self._sent) if self.manner.idempotent else None
        send = Send(
            self.name, key, (number,), self.manner.acks, time.monotonic_ns(), session, attempts=2
        )
        padding = self.rng.choice((1, 100, 100, 1000))
        return send, b"%d" % number + PADDING[:padding]

    def over(self, send: Send, outcome: Outcome, offset: int = -1, error: str = "") -> None:
        """Note how a send ended."""
        self.pending[send.key] -= 1
        self.log.over(send, outcome, offset, error)


def number_of(value: bytes | None) -> int:
    """Return the number that a record was given; -1 when it is none of ours."""
    head = (value or b"").partition(b" ")[0]
    return int(head) if head.isdigit() else -1


class Own(Sender):
    """`dlog.client`."""

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                await self._run_one()
            except DlogError as error:
                self.log.counts.reason(f"own start: {type(error).__name__}")
                await asyncio.sleep(0.5)

    async def _run_one(self) -> None:
        async with Producer(
            self._bootstrap,
            acks="all" if self.manner.acks == -1 else "leader",
            idempotent=self.manner.idempotent,
            compression=self.manner.compression,
            rng=self.rng,
        ) as producer:
            while not self.is_stopping:
                key = self.draw()
                if key is not None:
                    await self._burst(producer, key)
                await asyncio.sleep(self.rng.uniform(*PACE_S))

    def __init__(
        self,
        index: int,
        manner: Manner,
        log: SendLog,
        rng: random.Random,
        keys: Sequence[LogKey],
        bootstrap: Sequence[str],
    ) -> None:
        super().__init__(index, manner, log, rng, keys)
        self._bootstrap = list(bootstrap)

    async def _burst(self, producer: Producer, key: LogKey) -> None:
        for _ in range(self.rng.choice(BURST)):
            send, value = self.next_send(key)
            try:
                delivery = await producer.send(key.topic, value, partition=key.partition)
            except DlogError as error:
                self.over(send, Outcome.REFUSED, error=f"own: {type(error).__name__}")
                return
            self._watch(send, delivery)

    def _watch(self, send: Send, delivery: Delivery) -> None:
        outcome = delivery.outcome()
        if outcome is None:
            delivery.batch.watch(delivery.index, partial(self._watch, send, delivery))
        elif isinstance(outcome, Written):
            self.over(send, Outcome.OK, outcome.offset)
        else:
            cause = type(outcome.__cause__).__name__ if outcome.__cause__ else ""
            text = f"own: {type(outcome).__name__} {cause}"
            refused = isinstance(outcome, RefusedError)
            self.over(send, Outcome.REFUSED if refused else Outcome.UNKNOWN, error=text)


class Rdk(Sender):
    """confluent-kafka, in a thread of its own; what it does not deliver may be there or not."""

    def __init__(
        self,
        index: int,
        manner: Manner,
        log: SendLog,
        rng: random.Random,
        keys: Sequence[LogKey],
        bootstrap: Sequence[str],
    ) -> None:
        super().__init__(index, manner, log, rng, keys)
        self._done: list[Callable[[], None]] = []
        self._under_way: dict[int, Send] = {}
        self._is_dead = False
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(bootstrap),
            "acks": manner.acks,
            "enable.idempotence": manner.idempotent,
            "compression.type": manner.compression,
            "log_level": 0,
            "error_cb": lambda _: None,
            "throttle_cb": lambda _: self._done.append(partial(log.counts.reason, "rdk throttled")),
        }
        self._producer = librdkafka.Producer(settings)
        self._thread = ThreadPoolExecutor(1, self.name)

    async def run(self) -> None:
        while not self.is_stopping and not self._is_dead:
            key = self.draw()
            sends = []
            if key is not None:
                sends = [self.next_send(key) for _ in range(self.rng.choice(BURST))]
            await self._work(sends, self.rng.uniform(*PACE_S))
        deadline_s = time.monotonic() + FLUSH_S
        while any(self.pending.values()) and not self._is_dead:
            assert time.monotonic() < deadline_s, f"{self.name} does not tell: {self.pending}"
            await self._work([], 0.2)
        self._thread.shutdown()

    async def _work(self, sends: list[tuple[Send, bytes]], wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._in_thread, sends, wait_s)
        done, self._done = self._done, []
        for each in done:
            each()

    def _in_thread(self, sends: list[tuple[Send, bytes]], wait_s: float) -> None:
        for send, value in sends:
            self._under_way[send.numbers[0]] = send
            try:
                self._producer.produce(
                    send.key.topic,
                    value,
                    partition=send.key.partition,
                    on_delivery=partial(self._on_delivery, send),
                )
            except (librdkafka.KafkaException, BufferError) as error:
                text = f"rdk produce: {error}"
                del self._under_way[send.numbers[0]]
                self._done.append(partial(self.over, send, Outcome.REFUSED, error=text))
        end_s = time.monotonic() + wait_s
        try:
            while (left_s := end_s - time.monotonic()) > 0:
                self._producer.poll(left_s)
        except librdkafka.KafkaException as error:
            self._die(error)

    def _die(self, error: Exception) -> None:
        """Note that the producer has given itself up, as it does when it sees that data is gone."""
        self._is_dead = True
        self._done.append(partial(self.log.counts.reason, f"rdk fatal: {error}"))
        for send in self._under_way.values():
            self._done.append(partial(self.over, send, Outcome.UNKNOWN, error="rdk fatal"))

    def _on_delivery(self, send: Send, error: Any, message: Any) -> None:
        del self._under_way[send.numbers[0]]
        if error is None:
            # None: it was known as a repetition, and no longer where it is.
            offset = -1 if message.offset() is None else message.offset()
            self._done.append(partial(self.over, send, Outcome.OK, offset))
        else:
            text = f"rdk: {error.name()}"
            self._done.append(partial(self.over, send, Outcome.UNKNOWN, error=text))
