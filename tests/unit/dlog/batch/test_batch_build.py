"""`BatchBuilder`: what fits, what is refused, what a batch looks like in the end."""

import struct
from typing import Any

import pytest

from dlog.batch.build import BatchBuilder, batch_bytes_max, restamp
from dlog.batch.header import HEADER_BYTES, decode_header, verify_crc
from dlog.batch.records import Header, Record, decode, encode
from dlog.compression import Codec

NOW = 1_700_000_000_000
HEADERS = (("h", b"1"), ("null", None), ("größe", b""))


def builder(bytes_max: int = 10_000, codec: Codec = Codec.NONE) -> BatchBuilder:
    """Return an empty builder."""
    return BatchBuilder(codec, bytes_max)


def test_a_batch_as_the_reference_makes_it() -> None:
    made = builder()
    assert made.is_empty
    assert made.size_bytes == HEADER_BYTES
    assert made.append(b"k", b"v", (), NOW)
    assert made.append(None, None, HEADERS, NOW - 7)
    assert made.append(b"", b"", [("h", None)], NOW + 300)
    assert (made.record_count, made.is_empty, made.bytes_max) == (3, False, 10_000)
    assert (made.base_timestamp_ms, made.max_timestamp_ms) == (NOW, NOW + 300)
    size_bytes = made.size_bytes
    batch = made.build()
    assert len(batch) == size_bytes
    assert isinstance(batch, bytearray)
    assert batch == encode(
        [
            Record(b"k", b"v", (), NOW),
            Record(None, None, HEADERS, NOW - 7),
            Record(b"", b"", (("h", None),), NOW + 300),
        ]
    )


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_any_bytes_like_object_is_taken(make: Any) -> None:
    made = builder()
    assert made.append(make(b"key"), make(b"value"), [("h", make(b"1"))], 5)
    assert made.append_many([make(b"key")], [make(b"value")], 5) == 1
    first, second = decode(made.build())
    assert first == Record(b"key", b"value", (("h", b"1"),), 5, 0)
    assert second == Record(b"key", b"value", (), 5, 1)


def test_what_does_not_fit_changes_nothing() -> None:
    record = len(encode([Record(b"k", b"v" * 100, (), NOW)])) - HEADER_BYTES
    made = builder(HEADER_BYTES + 2 * record)
    assert made.append(b"k", b"v" * 100, (), NOW)
    before = made.size_bytes
    assert not made.append(b"k", b"v" * 101, (), NOW)
    assert not made.append(b"k" * 2**20, None, (), NOW)
    assert (made.record_count, made.size_bytes, made.max_timestamp_ms) == (1, before, NOW)
    assert made.append(b"k", b"v" * 100, (), NOW)
    assert made.size_bytes == made.bytes_max
    assert not made.append(None, None, (), NOW)
    assert decode_header(made.build()).record_count == 2


def test_many_until_one_does_not_fit() -> None:
    values = [b"v%d" % i for i in range(1000)]
    left, start, found = len(values), 0, []
    while left:
        made = builder(500)
        count = made.append_many(None, values, NOW, start)
        assert count == made.record_count > 10
        start, left = start + count, left - count
        found += decode(made.build())
    assert [r.value for r in found] == values
    assert {r.key for r in found} == {None}
    assert builder().append_many(None, values, NOW, 1000) == 0
    assert builder().append_many([], [], NOW) == 0
    assert builder().append_many((b"k",), (None,), NOW) == 1


def test_many_with_keys() -> None:
    made = builder()
    assert made.append_many([b"a", None, b"c", b"unused"], [b"1", b"2", None], NOW) == 3
    assert [(r.key, r.value) for r in decode(made.build())] == [
        (b"a", b"1"),
        (None, b"2"),
        (b"c", None),
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("text", b"", (), NOW), TypeError),
        ((b"", "text", (), NOW), TypeError),
        ((b"", 5, (), NOW), TypeError),
        ((b"", b"", (), "now"), TypeError),
        ((b"", b"", (), 1.5), TypeError),
        ((b"", b"", (), None), TypeError),
        ((b"", b"", (), -2), ValueError),
        ((b"", b"", (), 2**63), ValueError),
        ((b"", b"", (), -(2**70)), ValueError),
        ((b"", b"", (("k",),), NOW), TypeError),
        ((b"", b"", (["k", b"v"],), NOW), TypeError),
        ((b"", b"", ((b"k", b"v"),), NOW), TypeError),
        ((b"", b"", (("k", "v"),), NOW), TypeError),
        ((b"", b"", (("ok", b""), ("\ud800", b"v")), NOW), UnicodeEncodeError),
        ((b"", b"", None, NOW), TypeError),
        ((b"", b"", 5, NOW), TypeError),
        ((b"", b""), TypeError),
    ],
)
def test_what_is_refused_changes_nothing(arguments: Any, error: Any) -> None:
    made = builder()
    made.append(b"k", b"v", (), NOW)
    before = made.size_bytes
    with pytest.raises(error):
        made.append(*arguments)
    assert (made.record_count, made.size_bytes) == (1, before)
    assert made.build() == encode([Record(b"k", b"v", (), NOW)])


def test_many_with_a_bad_one_keeps_those_before() -> None:
    made = builder()
    bad: list[Any] = [b"1", b"2", "three", b"4"]
    with pytest.raises(TypeError):
        made.append_many(None, bad, NOW)
    assert made.record_count == 2
    with pytest.raises(ValueError, match="fewer keys"):
        made.append_many([b"k"], [b"3", b"4"], NOW)
    with pytest.raises(ValueError, match="start"):
        made.append_many(None, [b"v"], NOW, -1)
    with pytest.raises(ValueError, match="timestamp"):
        made.append_many(None, [b"v"], -2)
    nothing: Any = 5
    with pytest.raises(TypeError):
        made.append_many(None, nothing, NOW)
    assert [r.value for r in decode(made.build())] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("bytes_max", [-1, 0, 60, 2**31])
def test_a_bound_that_no_batch_can_have(bytes_max: int) -> None:
    with pytest.raises(ValueError, match="bounded"):
        builder(bytes_max)


def test_a_batch_is_built_once() -> None:
    made = builder()
    with pytest.raises(ValueError, match="needs records"):
        made.build()
    made.append(None, b"v", (), NOW)
    made.build()
    assert not made.append(None, b"v", (), NOW)
    assert made.append_many(None, [b"v"], NOW) == 0
    with pytest.raises(ValueError, match="taken"):
        made.build()


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_and_identity(codec: Codec) -> None:
    records = [Record(b"k", b"value" * i, (), NOW + i) for i in range(200)]
    made = builder(1 << 20, codec)
    for record in records:
        made.append(record.key, record.value, record.headers, record.timestamp_ms)
    identity = {"producer_id": 2**40, "producer_epoch": 7, "base_sequence": 2**31 - 1}
    batch = made.build(**identity, transactional=True)
    assert batch == encode(records, codec=codec, **identity, transactional=True)
    assert (len(batch) < made.size_bytes) == (codec is not Codec.NONE)


def test_restamp_changes_the_identity_and_the_crc_only() -> None:
    made = builder(codec=Codec.ZSTD)
    made.append(b"k", b"v", (), NOW)
    batch = made.build(producer_id=1, producer_epoch=0, base_sequence=500)
    before = bytes(batch)
    restamp(batch, producer_id=1, producer_epoch=1, base_sequence=0)
    header = decode_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 1, 0)
    assert verify_crc(batch, 0, len(batch))
    assert batch[:17] == before[:17]
    assert batch[21:43] == before[21:43]
    assert batch[57:] == before[57:]
    assert struct.unpack_from(">I", batch, 17) != struct.unpack_from(">I", before, 17)


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, None, ()),
        (b"k" * 70, b"v" * 9000, ()),
        (None, bytearray(5), (("größe" * 9, None), ("", memoryview(b"x" * 200)))),
        (memoryview(b"abcdefgh").cast("i"), None, ()),
    ],
)
def test_the_size_of_a_batch_of_one(key: Any, value: Any, headers: tuple[Header, ...]) -> None:
    size = batch_bytes_max(key, value, headers)
    made = builder(size)
    assert made.append(key, value, headers, 2**62)
    spare = 40 + sum(10 + 4 * len(name) for name, _ in headers)
    assert size - spare <= made.size_bytes <= size
