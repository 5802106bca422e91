"""Batches under random records and random damage."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.batch.header import HEADER_BYTES, decode_header, iter_headers, patch, verify_crc
from dlog.batch.records import Record, decode, encode
from dlog.checksum import crc32c, crc32c_pure
from dlog.compression import Codec, compress, decompress
from dlog.errors import CorruptMessageError

SIZE_MAX = 1 << 20

optional_bytes = st.none() | st.binary(max_size=300)
timestamps = st.integers(min_value=-1, max_value=2**53)
records = st.builds(
    Record,
    key=optional_bytes,
    value=optional_bytes,
    headers=st.lists(st.tuples(st.text(max_size=20), optional_bytes), max_size=4).map(tuple),
    timestamp_ms=timestamps,
)
record_lists = st.lists(records, min_size=1, max_size=20)
codecs = st.sampled_from(list(Codec))


@given(record_lists, codecs, st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_round_trip(found: list[Record], codec: Codec, base_offset: int, epoch: int) -> None:
    batch = encode(found, base_offset=base_offset, codec=codec, leader_epoch=epoch)
    header = decode_header(batch)
    assert header.batch_bytes == len(batch)
    assert header.next_offset == base_offset + len(found)
    assert header.max_timestamp_ms == max(r.timestamp_ms for r in found)
    assert decode(batch) == [r._replace(offset=base_offset + i) for i, r in enumerate(found)]


@given(record_lists, st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1))
def test_patching_changes_two_fields_and_no_byte_else(
    found: list[Record], base_offset: int, epoch: int
) -> None:
    batch = encode(found)
    before = bytes(batch)
    patch(batch, 0, base_offset, epoch)
    assert batch[8:12] == before[8:12]
    assert batch[16:] == before[16:]
    assert verify_crc(batch, 0, len(batch))
    header = decode_header(batch)
    assert (header.base_offset, header.leader_epoch) == (base_offset, epoch)


@given(record_lists, codecs, st.data())
def test_a_changed_byte_is_found_or_lies_outside_the_crc(
    found: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = encode(found, codec=codec)
    position = data.draw(st.integers(0, len(batch) - 1))
    batch[position] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode(batch, size_max=SIZE_MAX)
    except CorruptMessageError:
        return
    assert position < 8 or 12 <= position < 16
    assert len(decoded) == len(found)


@given(record_lists, codecs, st.data())
def test_damage_under_a_right_crc_raises_corrupt_message_and_nothing_else(
    found: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = encode(found, codec=codec)
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(21, len(batch) - 1))
        batch[position] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    try:
        decode(batch, size_max=SIZE_MAX)
    except CorruptMessageError:
        pass


@given(st.binary(max_size=200), st.integers(0, 300))
def test_random_bytes_are_no_batch_or_one_that_is_cut(raw: bytes, position: int) -> None:
    try:
        header = decode_header(raw, position)
    except CorruptMessageError:
        pass
    else:
        assert len(raw) - position >= HEADER_BYTES
        assert header.batch_bytes >= HEADER_BYTES
    try:
        list(iter_headers(raw))
    except CorruptMessageError:
        pass


@given(st.lists(record_lists, max_size=5), st.integers(0, 10), st.data())
def test_iterating_gives_exactly_the_whole_batches(
    lists: list[list[Record]], padding: int, data: st.DataObject
) -> None:
    batches = [encode(found) for found in lists]
    raw = bytes(padding) + b"".join(batches)
    end = data.draw(st.integers(padding, len(raw)))
    expected = []
    position = padding
    for batch in batches:
        if position + len(batch) <= end:
            expected.append(position)
        position += len(batch)
    assert [p for p, _ in iter_headers(raw, padding, end)] == expected
    assert [p for p, _ in iter_headers(raw[:end], padding)] == expected


@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_pure_and_native_checksum_agree(raw: bytes, cut: int) -> None:
    assert crc32c_pure(raw) == crc32c(raw) == crc32c(raw[cut:], crc32c(raw[:cut]))


@given(st.binary(max_size=5000), codecs, st.integers(0, 6000))
def test_decompression_gives_the_data_or_refuses_to_exceed_the_bound(
    raw: bytes, codec: Codec, size_max: int
) -> None:
    packed = compress(codec, raw)
    try:
        assert decompress(codec, packed, size_max) == raw
        assert len(raw) <= size_max
    except CorruptMessageError:
        assert len(raw) > size_max


@settings(max_examples=300)
@given(st.binary(max_size=300), codecs, st.integers(0, 1 << 16))
def test_decompression_of_anything_is_bounded(raw: bytes, codec: Codec, size_max: int) -> None:
    try:
        assert len(decompress(codec, raw, size_max)) <= size_max
    except CorruptMessageError:
        pass
