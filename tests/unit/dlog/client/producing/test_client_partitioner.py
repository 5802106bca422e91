"""Where records go: keys as every Kafka client places them, the rest in turns."""

import random
from collections import Counter

import pytest

from dlog.client.producing.partitioner import next_sticky, partition_for_key

# From Kafka's own UtilsTest.testMurmur2, as positive numbers.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), MURMUR2.items())
def test_keys_are_placed_as_kafka_does(key: bytes, hashed: int) -> None:
    for partition_count in (1, 2, 3, 7, 100):
        expected = (hashed & 0x7FFFFFFF) % partition_count
        assert partition_for_key(key, partition_count) == expected
        assert partition_for_key(bytearray(key), partition_count) == expected


def test_sticking_goes_to_every_other_partition_alike() -> None:
    rng = random.Random(3)
    counts = Counter(next_sticky(5, [0, 1, 3, 4], 3, rng) for _ in range(6000))
    assert sorted(counts) == [0, 1, 4]
    assert all(1800 < count < 2200 for count in counts.values())


def test_sticking_without_a_choice() -> None:
    rng = random.Random(3)
    assert next_sticky(1, [0], 0, rng) == 0
    assert next_sticky(3, [2], 2, rng) == 2
    # None has a leader: any will do, one will come.
    assert {next_sticky(3, [], -1, rng) for _ in range(100)} == {0, 1, 2}
