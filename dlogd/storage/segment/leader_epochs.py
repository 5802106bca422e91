"""Leader epochs of a log: the start offset of each, and their small file.

    leader-epochs       one line `<leader epoch> <start offset>` per epoch; both ascend

The envelope is `dlogd.storage.io.checkpoint_files`'s; docs/formats/leader-epochs.md. Pure; the
log installs the bytes. The file may lag: an index entry beyond the first batch of an epoch is
settled only when the file has that epoch, so recovery finds what is missing in the part of the log
that it scans.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from dlog.errors import KafkaStorageError
from dlog.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError

FILE_NAME = "leader-epochs"
KIND = "leader-epochs"

EpochStart = tuple[LeaderEpoch, Offset]


class EpochHistory:
    """Leader epochs and their start offsets; both ascend strictly.

    Invariant: each batch at or after a start offset and before the next has that epoch.
    """

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: list[EpochStart] | None = None) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        for epoch, start_offset in entries or []:
            self.assign(epoch, start_offset)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch, or NO_EPOCH."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def entries(self) -> list[EpochStart]:
        """All (epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Note that batches from `start_offset` on have `epoch`; return whether that was news.

        Entries that contradict it go: same or later start, same or later epoch (KIP-101).
        """
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset:
            return False
        if epoch < 0:
            return False
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        del self._epochs[keep:], self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def end_offset_for(
        self, epoch: LeaderEpoch, log_end_offset: Offset
    ) -> tuple[LeaderEpoch, Offset]:
        """Return the largest epoch <= `epoch` in the log and where it ends (exclusive).

        (NO_EPOCH, NO_OFFSET) when `epoch` is newer than all; for an epoch before all, itself and
        the start of the first. The semantics of OffsetForLeaderEpoch (KIP-101, KIP-279).
        """
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == 0:
            return epoch, self._starts[0]
        return self._epochs[above - 1], self._starts[above]

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch of the batch that holds `offset`, NO_EPOCH before the first."""
        above = bisect_right(self._starts, offset)
        return self._epochs[above - 1] if above else NO_EPOCH

    def truncate_to(self, offset: Offset) -> bool:
        """Forget what begins at or after `offset`; return whether anything did."""
        keep = bisect_left(self._starts, offset)
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        return changed

    def trim_to(self, offset: Offset) -> bool:
        """Forget what ends at or before `offset`; the first entry left begins there."""
        above = bisect_right(self._starts, offset)
        if above == 0 or (above == 1 and self._starts[0] == offset):
            return False
        del self._epochs[: above - 1], self._starts[: above - 1]
        self._starts[0] = offset
        return True

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        lines = [f"{epoch} {start_offset}\n" for epoch, start_offset in self.entries]
        return checkpoint_files.encode(KIND, "".join(lines))


def in_order(found: Iterable[tuple[int, int]], path: str, log_start: int) -> EpochHistory:
    """Return the history of batches, given as (leader epoch, offset) by offset.

    No checksum is over the epoch in a batch. Raises KafkaStorageError, which names `path`, where
    epochs fall: bytes have changed, and a history made of them would cut what others have. Up to
    `log_start` they may: when all was deleted, the log may have gone on with an older history.
    """
    history = EpochHistory()
    for epoch, offset in found:
        if epoch < history.latest and offset <= log_start:
            history.truncate_to(Offset(0))
        if epoch < history.latest:
            raise KafkaStorageError(
                f"{path} is damaged: the batch at offset {offset} has leader epoch {epoch}, one"
                f" before it has {history.latest}. The partition is out of service and its"
                " batches are untouched"
            )
        history.assign(LeaderEpoch(epoch), Offset(offset))
    return history


def newer_epoch(path: str, found: int, known: int) -> KafkaStorageError:
    """Return the error of a log whose newest leader epoch its partition never had.

    Only its last batches tell so, and no checksum is over their epoch: believed, they would be cut
    as what nobody else has.
    """
    return KafkaStorageError(
        f"{path} is damaged: its last batch has leader epoch {found}, and the partition had none"
        f" after {known}. The partition is out of service and its batches are untouched"
    )


def decode(data: bytes) -> EpochHistory:
    """Read the bytes of the file; raise MalformedFileError."""
    history = EpochHistory()
    lines = checkpoint_files.decode(KIND, data).splitlines()
    for line in lines:
        epoch, _, start_offset = line.partition(" ")
        if not (epoch.isdecimal() and start_offset.isdecimal()):
            raise MalformedFileError(f"{KIND} file has a line {line!r}")
        history.assign(LeaderEpoch(int(epoch)), Offset(int(start_offset)))
    if len(history) != len(lines):
        raise MalformedFileError(f"the entries of a {KIND} file do not ascend")
    return history
