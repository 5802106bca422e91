"""State of the machine so far, its subscribers, and its snapshots.

Entries come from the core one by one (`apply`); `publish` then tells subscribers and proposers.
Owner: the Raft loop.
"""

import asyncio
import logging
from collections.abc import Callable

from dlogd.metadata.machine import apply
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import snapshots
from dlogd.metadata.raft.durable_log import LogFailedError, RaftLog
from dlogd.metadata.raft.entries import What
from dlogd.metadata.raft.feature_level import expect_known
from dlogd.metadata.raft.snapshots import Snapshot, SnapshotFiles
from dlogd.metadata.state.delta import ImageDelta, between
from dlogd.metadata.state.encoding import MalformedError
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage, Outcome

log = logging.getLogger(__name__)

Subscriber = Callable[[ClusterImage, ClusterImage, ImageDelta], None]
Settle = Callable[[bytes, Outcome], None]


class MachineState:
    """Image, subscribers, compaction."""

    def __init__(
        self,
        raft_log: RaftLog,
        files: SnapshotFiles,
        taken: Snapshot | None,
        *,
        settle: Settle,
        log_bytes_max: int,
        entries_kept: int,
    ) -> None:
        self._log = raft_log
        self._files = files
        self._settle = settle
        self._log_bytes_max = log_bytes_max
        self._compact_at_bytes = log_bytes_max
        self._entries_kept = entries_kept
        self.image = EMPTY_IMAGE if taken is None else taken.image
        self.applied_term = raft_log.entries[0][2] if taken is None else taken.term
        self.voters_applied_index = 0
        self._published = self.image
        self._outcomes: list[tuple[bytes, Outcome]] = []
        self._subscribers: dict[int, Subscriber] = {}
        self._subscriber_next = 0
        # For tests: sees each entry as it is applied, and each jump of a snapshot.
        self.observe: Callable[[int, int, bytes], None] | None = None

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber(old, new, delta)` after each change; return how to stop that."""
        number = self._subscriber_next
        self._subscriber_next += 1
        self._subscribers[number] = subscriber
        return lambda: self._unsubscribe(number)

    def _unsubscribe(self, number: int) -> None:
        self._subscribers.pop(number, None)

    def apply(self, index: int, term: int, entry: bytes) -> None:
        """Apply a committed entry. What is malformed changes nothing, on all nodes alike.

        Raises nothing but UnknownLevelError, before the image is one that others do not have.
        """
        self.applied_term = term
        try:
            if entry[0] == wire.COMMANDS:
                self._apply_items(entry)
            elif entry[0] == wire.VOTERS:
                change_id, _ = wire.decode_voters(entry)
                self.voters_applied_index = index
                self._outcomes.append(
                    (change_id.bytes, Applied(version=self.image.version, value=index))
                )
        except MalformedError as error:
            log.error("Skipped malformed Raft entry index=%d error=%s", index, error)
        if self.observe is not None:
            self.observe(index, term, entry)

    def _apply_items(self, entry: bytes) -> None:
        for item in wire.decode_items(entry):
            if item.what is What.COMMAND:
                image, outcome = apply.apply(self.image, item.data)
                expect_known(image)
                self.image = image
                self._outcomes.append((item.key, outcome))
            else:
                self._outcomes.append((item.key, Applied(version=self.image.version)))

    def publish(self) -> None:
        """Tell subscribers, then proposers, what was applied since the last time."""
        old, new = self._published, self.image
        if new is not old:
            self._published = new
            if self._subscribers:
                delta = between(old, new)
                loop = asyncio.get_running_loop()
                for subscriber in self._subscribers.values():
                    loop.call_soon(subscriber, old, new, delta)
        outcomes, self._outcomes = self._outcomes, []
        for key, outcome in outcomes:
            self._settle(key, outcome)

    # -- snapshots

    def maybe_compact(self, applied_index: int) -> None:
        """Replace old entries by a snapshot when the log is large."""
        if self._log.size_bytes < self._compact_at_bytes or applied_index <= self._files.index:
            return
        try:
            self._files.store(applied_index, self._encode(applied_index))
            self._shorten(applied_index)
            self._files.remove_old()
        except OSError as error:
            self._compact_at_bytes = self._log.size_bytes + self._log_bytes_max
            log.warning("Could not compact the Raft log error=%s", error)
            return
        self._compact_at_bytes = max(self._log_bytes_max, 2 * self._log.size_bytes)
        log.info("Compacted the Raft log index=%d bytes=%d", applied_index, self._log.size_bytes)

    def renew_snapshot(self, applied_index: int) -> tuple[int, bytes]:
        """Replace a snapshot that has rotted on disk by one of now; return its index and bytes."""
        data = self._encode(applied_index)
        try:
            self._files.store(applied_index, data)
            self._files.remove_old()
        except OSError as error:
            log.error("Could not replace the damaged metadata snapshot error=%s", error)
        else:
            log.error("Replaced the damaged metadata snapshot index=%d", applied_index)
        return applied_index, data

    def _encode(self, applied_index: int) -> bytes:
        term = self._log.term_at(applied_index)
        assert term is not None
        voters = self._log.voters_at(applied_index)
        return snapshots.encode(
            Snapshot(index=applied_index, term=term, voters=voters, image=self.image)
        )

    def _shorten(self, applied_index: int) -> None:
        """Drop entries that the snapshot covers, but for some that laggards may still want."""
        base_index = max(self._log.base_index, applied_index - self._entries_kept)
        term = self._log.term_at(base_index)
        assert term is not None
        self._log.rebase(base_index, term, self._log.voters_at(base_index))

    def install(self, data: bytes) -> Snapshot:
        """Take over a leader's snapshot, durably.

        Raises MalformedError, LogFailedError and UnknownLevelError.
        """
        taken = snapshots.decode(data)
        expect_known(taken.image)
        try:
            self._files.store(taken.index, data)
            self._log.rebase(taken.index, taken.term, taken.voters)
            self._files.remove_old()
        except OSError as error:
            raise LogFailedError(f"The leader's snapshot cannot be stored: {error}") from error
        self.image, self.applied_term = taken.image, taken.term
        self.voters_applied_index = taken.index
        for command_id, outcome in taken.image.outcomes.items():
            self._outcomes.append((command_id.bytes, outcome))
        log.info("Installed metadata snapshot index=%d bytes=%d", taken.index, len(data))
        return taken
