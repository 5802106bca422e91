"""Golden bytes of the producer snapshot (docs/formats/producer-snapshot.md)."""

from dlogd.replication.partition.producer_state import ProducerStates

GOLDEN = bytes.fromhex(
    "444c5053 0001 6e5d1914"  # DLPS, version 1, CRC-32C
    "000000000000006c 00000002"  # end offset 108, two producers
    "00000000000003e8 0003 00000004 0000018bcfe5687b 02"  # id 1000, epoch 3, next 4, two batches
    "7ffffffe 0000000000000064 0000000000000068 ffffffffffffffff"  # across the wrap
    "00000003 0000000000000069 0000000000000069 0000018bcfe5687b"  # with an append time
    "00000000000007d0 0000 00000002 0000018bcfe568c8 01"  # id 2000, epoch 0, next 2, one batch
    "00000000 000000000000006a 000000000000006b ffffffffffffffff"
)


OWNER = bytes.fromhex("00112233445546778899aabbccddeeff 00000005")  # topic id, partition


def test_producer_snapshot() -> None:
    states = ProducerStates(expiry_ms=1000, producers_max=10)
    states.update(1000, 3, 2**31 - 2, 5, 100, 104, -1, 1_700_000_000_000)
    states.update(1000, 3, 3, 1, 105, 105, 1_700_000_000_123, 1_700_000_000_123)
    states.update(2000, 0, 0, 2, 106, 107, -1, 1_700_000_000_200)
    assert states.encode(108, OWNER) == GOLDEN
    again = ProducerStates(expiry_ms=1000, producers_max=10)
    assert again.load(GOLDEN, OWNER) == 108
    assert again.encode(108, OWNER) == GOLDEN
