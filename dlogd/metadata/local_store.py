"""Metadata store of a node alone: a durable local log.

`propose` appends a command, `image` is the newest state, subscribers hear of each change. A command
that is refused leaves no trace; one that was applied is on stable storage before anybody hears of
it. Commands that wait together are flushed together. Owner: the event loop's thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    KafkaStorageError,
)
from dlogd.metadata.commands.codec import Command, MalformedCommandError, encode
from dlogd.metadata.journal_files import JournalFiles, JournalUncertainError
from dlogd.metadata.machine import apply
from dlogd.metadata.machine.admission import admit
from dlogd.metadata.state.delta import ImageDelta, between
from dlogd.metadata.state.image import Applied, ClusterImage, Outcome, Refused, Unknown
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.files import Directory
from dlogd.storage.io.io_engine import Engine

log = logging.getLogger(__name__)

JOURNAL_BYTES_MAX = 4 << 20
"""A larger journal is replaced by a snapshot."""

FRAME_COMMANDS_MAX = 16
"""Commands applied and flushed at once: bounds the time that the loop is held up."""

FRAME_BYTES_MAX = 4 << 20
"""The same in bytes; a single command may be larger."""

NOTE_INTERVAL_S = 5.0
"""How long after a change its version is noted outside the journal."""

WAITING_MAX = 1_000
"""Proposals that may wait; further ones are refused."""

_THROTTLED = 89  # THROTTLING_QUOTA_EXCEEDED: try again later

Subscriber = Callable[[ClusterImage, ClusterImage, ImageDelta], None]


@dataclass(slots=True)
class _Proposal:
    data: bytes
    settled: asyncio.Future[Outcome]


class MetadataStore:
    """The cluster's metadata on this node. Life: `open` once, `close` once."""

    def __init__(
        self,
        directory: Directory,
        engine: Engine,
        *,
        clock: Clock,
        journal_bytes_max: int = JOURNAL_BYTES_MAX,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._archive = JournalFiles(directory)
        self._engine = engine
        self._clock = clock
        self._journal_bytes_max = journal_bytes_max
        # After a snapshot that the disk refused, the journal may grow this far before the next try.
        self._compact_at_bytes = journal_bytes_max
        self._on_failed = on_failed
        self._image = ClusterImage()
        self._waiting: deque[_Proposal] = deque()
        self._subscribers: dict[int, Subscriber] = {}
        self._subscriber_next = 0
        self._tasks = Tasks(self._on_task_failed)
        self._writer: asyncio.Task[None] | None = None
        self._note_timer: asyncio.TimerHandle | None = None
        self._noting: asyncio.Task[None] | None = None
        self._closed = True
        self.failed: Exception | None = None
        """Why nothing can be proposed any more; the process must be restarted."""

    @classmethod
    async def open(
        cls,
        directory: Directory,
        engine: Engine,
        *,
        clock: Clock,
        journal_bytes_max: int = JOURNAL_BYTES_MAX,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> "MetadataStore":
        """Read what the directory holds and begin.

        Raises MetadataCorruptError when a start would lose what was promised, and OSError.
        `on_failed` is called once, when nobody knows any more what the disk holds.
        """
        store = cls(
            directory,
            engine,
            clock=clock,
            journal_bytes_max=journal_bytes_max,
            on_failed=on_failed,
        )
        store._image = await engine.run(store._archive.open)
        store._closed = False
        await store._note()
        log.info(
            "Opened metadata path=%s version=%d topics=%d",
            directory.path,
            store._image.version,
            len(store._image.topics),
        )
        return store

    @property
    def image(self) -> ClusterImage:
        """The newest image; all of it is on stable storage."""
        return self._image

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber(old, new, delta)` after each change, in order; return how to stop that.

        Subscribers have run when the proposer of the change goes on.
        """
        number = self._subscriber_next
        self._subscriber_next += 1
        self._subscribers[number] = subscriber
        return lambda: self._unsubscribe(number)

    def _unsubscribe(self, number: int) -> None:
        self._subscribers.pop(number, None)

    async def propose(self, command: Command, deadline_ms: int) -> Outcome:
        """Apply a command, durably; wait at most until `deadline_ms` (`Clock.now_ms`).

        Unknown: it may have been applied, or may be later; the same command again is harmless.
        """
        refusal = self._refusal(command)
        if refusal is not None:
            return refusal
        try:
            data = encode(command)
        except MalformedCommandError as error:
            return Refused.of(InvalidRequestError(f"Malformed command: {error}"))
        loop = asyncio.get_running_loop()
        proposal = _Proposal(data, loop.create_future())
        self._waiting.append(proposal)
        if self._writer is None:
            self._writer = self._tasks.spawn("metadata-writer", self._write())
        timeout_s = max(0, deadline_ms - self._clock.now_ms()) / 1000
        # The command goes on when its proposer gives up: `wait` does not cancel it.
        done, _ = await asyncio.wait([proposal.settled], timeout=timeout_s)
        return proposal.settled.result() if done else Unknown(message="The deadline passed")

    def _refusal(self, command: Command) -> Refused | None:
        if self.failed is not None:
            return Refused.of(KafkaStorageError(f"The metadata store has failed: {self.failed}"))
        if self._closed:
            return Refused.of(BrokerNotAvailableError("The metadata store is closed"))
        if len(self._waiting) >= WAITING_MAX:
            return Refused(code=_THROTTLED, message="Too many changes of metadata wait")
        return admit(command)

    async def _write(self) -> None:
        """Carry out what waits, until nothing does."""
        try:
            while self._waiting:
                batch = self._take_batch()
                await self._carry_out(batch)
                if self._archive.journal_bytes >= self._compact_at_bytes:
                    await self._compact()
        except JournalUncertainError as error:
            self._fail(error)
        finally:
            self._writer = None

    def _take_batch(self) -> list[_Proposal]:
        batch = [self._waiting.popleft()]
        size = len(batch[0].data)
        while self._waiting and len(batch) < FRAME_COMMANDS_MAX:
            size += len(self._waiting[0].data)
            if size > FRAME_BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _carry_out(self, batch: list[_Proposal]) -> None:
        """Apply a batch to the image, make what changed it durable, then tell everybody."""
        image = self._image
        accepted: list[bytes] = []
        outcomes: list[Outcome] = []
        for proposal in batch:
            changed, outcome = apply.apply(image, proposal.data)
            if isinstance(outcome, Applied) and outcome.version == changed.version:
                image = changed
                accepted.append(proposal.data)
            outcomes.append(outcome)
        if accepted:
            first_version = self._image.version + 1
            try:
                await self._engine.run(lambda: self._archive.append(first_version, accepted))
            except OSError as error:
                log.error("Could not write metadata error=%s commands=%d", error, len(accepted))
                refused = Refused.of(KafkaStorageError(f"Metadata could not be written: {error}"))
                self._settle_unwritten(batch, outcomes, refused)
                return
            except JournalUncertainError as error:
                self._settle_unwritten(batch, outcomes, Unknown(message=str(error)))
                raise
            self._install(image)
            if self._note_timer is None:
                self._note_timer = asyncio.get_running_loop().call_later(
                    NOTE_INTERVAL_S, self._note_soon
                )
        _settle(batch, outcomes)

    def _settle_unwritten(
        self, batch: list[_Proposal], outcomes: list[Outcome], instead: Outcome
    ) -> None:
        """Tell of a batch that is not on the disk; what was applied before stays so."""
        version = self._image.version
        was_applied = [isinstance(each, Applied) and each.version <= version for each in outcomes]
        told = [
            each if known else instead for each, known in zip(outcomes, was_applied, strict=True)
        ]
        _settle(batch, told)

    def _install(self, image: ClusterImage) -> None:
        old, self._image = self._image, image
        if not self._subscribers:
            return
        delta = between(old, image)
        loop = asyncio.get_running_loop()
        for subscriber in self._subscribers.values():
            loop.call_soon(subscriber, old, image, delta)

    def _note_soon(self) -> None:
        self._note_timer = None
        if not self._closed and self.failed is None:
            self._noting = self._tasks.spawn("note metadata version", self._note())

    async def _note(self) -> None:
        """Note the newest version outside the journal, to know a journal that lost its end."""
        version = self._image.version
        try:
            await self._engine.run(lambda: self._archive.note(version))
        except OSError as error:
            log.warning("Could not write the metadata version error=%s", error)

    async def _compact(self) -> None:
        image = self._image
        try:
            await self._engine.run(lambda: self._archive.compact(image))
        except OSError as error:
            self._compact_at_bytes += self._journal_bytes_max
            log.warning("Could not write metadata snapshot error=%s", error)
        else:
            self._compact_at_bytes = self._journal_bytes_max
            log.info("Wrote metadata snapshot version=%d", image.version)

    def _fail(self, error: Exception) -> None:
        self.failed = error
        log.critical("Metadata store failed error=%s", error)
        waiting = list(self._waiting)
        self._waiting.clear()
        _settle(waiting, [Refused.of(KafkaStorageError(str(error)))] * len(waiting))
        if self._on_failed is not None:
            self._on_failed(error)

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        """A defect in the writer: whatever it was, the image and the disk may differ now."""
        if self.failed is None:
            self._fail(JournalUncertainError(f"{name}: {error!r}"))

    async def close(self) -> None:
        """Finish what waits and close the files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._note_timer is not None:
            self._note_timer.cancel()
        for task in (self._writer, self._noting):
            if task is not None:
                await asyncio.wait([task])
        await self._tasks.close()
        await self._engine.run(self._close_archive)

    def _close_archive(self) -> None:
        try:
            if self.failed is None:
                self._archive.seal(self._image.version + 1)
                self._archive.note(self._image.version)
        except OSError as error:
            log.warning("Could not close the metadata journal cleanly error=%s", error)
        finally:
            self._archive.close()


def _settle(batch: list[_Proposal], outcomes: list[Outcome]) -> None:
    for proposal, outcome in zip(batch, outcomes, strict=True):
        if not proposal.settled.done():
            proposal.settled.set_result(outcome)
