"""Batches that no reader can decode although their checksum is right, and their error.

Pure; `dlog.client.consuming.partition_cursor` meets such batches,
`dlog.client.consuming.consumer_core` raises the error.
"""

from typing import NamedTuple

from dlog.errors import DecompressedTooLargeError, DlogError, WireError
from dlog.types import TopicPartition


class BadBatch(NamedTuple):
    """The place of a batch that cannot be decoded, and why."""

    topic_partition: TopicPartition
    offset: int
    """The first offset of the batch."""
    resume_offset: int
    """The offset behind the batch: reading can go on there."""
    cause: WireError
    """The error of the decoder, which names the offset."""

    def __str__(self) -> str:
        cure = (
            "; a larger max_decompressed_batch_bytes reads the batch" if self.is_too_large else ""
        )
        return f"{self.problem}{cure}; reading can go on at offset {self.resume_offset}"

    @property
    def is_too_large(self) -> bool:
        """Whether the batch decompresses to more than the reader takes."""
        return isinstance(self.cause, DecompressedTooLargeError)

    @property
    def problem(self) -> str:
        """What cannot be read, and why; the cause begins with the place of the batch."""
        return f"{self.topic_partition}: cannot decode the {self.cause}"


class UndecodableBatchError(DlogError):
    """Reading met a batch that cannot be decoded; seek to `batch.resume_offset` to go on.

    `__cause__` is the error of the decoder: CorruptMessageError, or UnsupportedCompressionTypeError
    where the codec is not installed.
    """

    def __init__(self, batch: BadBatch) -> None:
        super().__init__(str(batch))
        self.batch = batch
        self.__cause__ = batch.cause
