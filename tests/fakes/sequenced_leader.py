"""A leader of one partition that keeps Kafka's rules about sequences."""

from dlog.batch.header import decode_header
from dlog.batch.records import decode
from dlogd.replication.partition.producer_state import ProducerStates


class Leader:
    """One partition: the numbers of its records, and what it knows of producers."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.batches: list[bytes] = []
        self.states = ProducerStates(expiry_ms=10**9, producers_max=100)

    def append(self, data: bytes) -> int:
        """Append a batch or recognise it; return its base offset; raise as a leader refuses."""
        header = decode_header(data)
        known = self.states.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
        )
        if known is not None:
            return known[0]
        return self._take(data)

    def _take(self, data: bytes) -> int:
        base_offset = len(self.log)
        self.log += [int(record.value or b"") for record in decode(data)]
        self.batches.append(data)
        header = decode_header(data)
        self.states.update(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
            base_offset,
            len(self.log) - 1,
            -1,
            0,
        )
        return base_offset

    def lose(self, count: int) -> None:
        """Become another leader, which never had the last batches."""
        kept = self.batches[: len(self.batches) - count]
        self.__init__()  # type: ignore[misc]
        for data in kept:
            self._take(data)
