"""Golden bytes of a record batch (docs/formats/record-batch.md)."""

from dlog.batch.header import decode_header, patch
from dlog.batch.records import Record, decode, encode
from tests.golden.documents import examples

RECORDS = [
    Record(b"JFK", b"on time", (("origin", b"NYC"),), 1_700_000_000_000, 1000),
    Record(None, None, (), 1_700_000_000_250, 1001),
]


def test_record_batch() -> None:
    (golden,) = examples("record-batch.md")
    batch = encode(RECORDS, producer_id=7, producer_epoch=1, base_sequence=40)
    patch(batch, 0, 1000, 3)
    assert bytes(batch) == golden
    assert decode(golden) == RECORDS
    header = decode_header(golden)
    assert (header.batch_bytes, header.leader_epoch, header.next_offset) == (97, 3, 1002)
