"""Counters of a consumer, as plain ints that a program may read at any time.

Pure: the owner adds, nobody resets. Connections, look-ups and retries are counted beside these, in
`dlog.client.cluster.counters`.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """Counters of one consumer; each only grows."""

    records: int = 0
    """Records handed out."""
    fetches: int = 0
    """Fetch requests that were answered."""
    empty_fetches: int = 0
    """Of these, answers without a byte of records."""
    fetch_failures: int = 0
    """Fetch requests that failed as a whole."""
    partition_errors: int = 0
    """Errors of single partitions in answers to fetches."""
    bytes_fetched: int = 0
    """Bytes of batches, as they came over the wire."""
    bytes_dropped: int = 0
    """Of these, bytes that were fetched for nothing: after a seek, or of a paused partition."""
    corrupt_batches: int = 0
    """Batches that failed their checks; they were fetched again."""
    bad_batches: int = 0
    """Batches with a right checksum that could not be decoded: reading stopped there."""
    follower_moves: int = 0
    """Times that a leader named a follower to read a partition from."""
    gaps: int = 0
    """Gaps that were found: by retention, truncation, re-creation, or holes."""

    def as_dict(self) -> dict[str, int]:
        """Return all by name."""
        return asdict(self)
