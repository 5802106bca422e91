"""The walk over a plain batch before its append: compiled and in Python, against the readers.

Both forms give the same numbers and refuse in the same words. What they accept is what the clear
reference reads with offset deltas of 0, 1, 2, ..., in the same times.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.batch import _pure_walk
from dlog.batch.header import HEADER_BYTES
from dlog.batch.open_batch import OpenBatch
from dlog.batch.records import Record, encode
from dlog.errors import CorruptMessageError
from tests.property.record_reference import int64s, record_lists, reference

speedups: Any = pytest.importorskip("dlog.batch._speedups", reason="the extension is not built")

WORDS = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)


def outcome(walk: Any, raw: bytes, count: int, base_timestamp_ms: int, margin: int = 0) -> Any:
    """Return what the walk gives, or its refusal in words; `margin` bytes lie on both sides."""
    buffer = bytearray(b"\xff" * margin + raw + b"\0" * margin)
    try:
        return walk(buffer, margin, margin + len(raw), count, base_timestamp_ms)
    except CorruptMessageError as error:
        return str(error)
    finally:
        buffer.clear()  # BufferError while somebody still holds it


def check(raw: bytes, count: int, base_timestamp_ms: int) -> Any:
    """Let both walk, and hold what they say against the reference; return what they say."""
    found = outcome(speedups.walk_records, raw, count, base_timestamp_ms)
    assert found == outcome(_pure_walk.walk_records, raw, count, base_timestamp_ms)
    assert found == outcome(speedups.walk_records, raw, count, base_timestamp_ms, margin=9)
    expected = reference(OpenBatch(raw, count, 0, base_timestamp_ms, None))
    if isinstance(found, str):
        if expected is not CorruptMessageError:
            assert "offset delta" in found or "32 bits" in found, found
        return found
    assert [record.offset for record in expected] == list(range(count))
    times = [record.timestamp_ms for record in expected]
    real = [each for each in times if each != -1]
    assert found == (max(times), times.index(max(times)), min(real, default=-1))
    return found


@given(record_lists)
def test_whole_batches_are_walked(found: list[Record]) -> None:
    raw = bytes(encode(found)[HEADER_BYTES:])
    assert isinstance(check(raw, len(found), found[0].timestamp_ms), tuple)


@settings(max_examples=400)
@given(record_lists, st.data())
def test_damaged_batches_are_refused_alike(found: list[Record], data: st.DataObject) -> None:
    raw = bytearray(encode(found)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, len(raw) - 1))
        octet = data.draw(WORDS)
        if data.draw(st.booleans()):
            raw[position] = octet
        else:
            raw.insert(position, octet)
    count = data.draw(st.integers(max(1, len(found) - 1), len(found) + 1) | st.just(2**31 - 1))
    check(bytes(raw), count, data.draw(st.just(found[0].timestamp_ms) | int64s))


@settings(max_examples=200)
@given(st.integers(58, 70), st.booleans(), st.data())
def test_damage_in_usual_records_is_refused_alike(
    size: int, with_keys: bool, data: st.DataObject
) -> None:
    """Short numbers and no headers: the compiled form has a quicker way for these."""
    key = b"k" * 3 if with_keys else None
    found = [Record(key, b"v" * size, (), 1000 + 70 * (i % 3)) for i in range(67)]
    raw = bytearray(encode(found)[HEADER_BYTES:])
    whole = len(raw) // 67
    # Most often where a record has its numbers, in the first bytes and the last.
    position = data.draw(st.integers(0, 66)) * whole + data.draw(st.integers(-3, 12))
    raw[max(0, min(position, len(raw) - 1))] = data.draw(WORDS)
    del raw[len(raw) - data.draw(st.sampled_from([0, 0, 0, 1, 2, 40])) :]
    check(bytes(raw), data.draw(st.sampled_from([66, 67, 67, 67])), 1000)


@given(record_lists, st.data())
def test_truncated_batches_are_refused(found: list[Record], data: st.DataObject) -> None:
    raw = bytes(encode(found)[HEADER_BYTES:])
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    assert isinstance(check(cut, len(found), found[0].timestamp_ms), str)


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(1, 9), int64s)
def test_any_bytes_are_refused_alike(raw: bytes, count: int, base_timestamp_ms: int) -> None:
    check(raw, count, base_timestamp_ms)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6), st.data())
def test_numbers_of_any_length_are_refused_alike(numbers: list[int], data: st.DataObject) -> None:
    content = bytearray(1)
    for number in numbers[1:]:
        content += varint(data.draw(st.sampled_from([number, 0, 1, 2])), data)
    length = data.draw(st.sampled_from([len(content) * 2] * 3 + [numbers[0]]))
    check(bytes(varint(length, data) + content), 1, 1000)


def varint(number: int, data: st.DataObject) -> bytearray:
    """Return a number in seven bits a byte, sometimes longer than it needs to be."""
    output = bytearray()
    while number > 0x7F:
        output.append(number & 0x7F | 0x80)
        number >>= 7
    padding = data.draw(st.integers(0, 5))
    output.append(number | (0x80 if padding else 0))
    return output + b"\x80" * (padding - 1) + b"\0" * (padding > 0)


def test_places_outside_the_buffer_and_wrong_arguments_are_refused() -> None:
    for walk in (speedups.walk_records, _pure_walk.walk_records):
        for start, end in ((-1, 2), (2, 1), (0, 9)):
            with pytest.raises(ValueError, match="not inside the buffer"):
                walk(bytearray(8), start, end, 1, 0)
        with pytest.raises(TypeError):
            walk(bytearray(8), 0, 8, 1)
        with pytest.raises(TypeError):
            walk("text", 0, 4, 1, 0)
        with pytest.raises(TypeError):
            walk(bytearray(8), "0", 4, 1, 0)
    with pytest.raises(OverflowError):
        speedups.walk_records(bytearray(8), 0, 8, 2**63, 0)


def test_the_first_of_the_largest_times_is_named_and_no_time_is_no_smallest() -> None:
    for times, expected in (
        ((5, 9, 9, 7), (9, 1, 5)),
        ((-1, -1), (-1, 0, -1)),
        ((-1, 7), (7, 1, 7)),
        ((-5, -1), (-1, 1, -5)),
        ((-9, -7), (-7, 1, -9)),
    ):
        records = [Record(value=b"v", timestamp_ms=time) for time in times]
        assert check(bytes(encode(records)[HEADER_BYTES:]), len(times), times[0]) == expected


@pytest.mark.parametrize(
    ("raw", "count", "cause"),
    [
        ("0c00000001010000", 1, "bytes after the last record"),
        ("0c0000000101000c000002010100", 3, "record 2: a record is cut"),
        ("0c0000000101000c000002010100", 1, "bytes after the last record"),
        ("0c0000000101000c000000010100", 2, "record 1: its offset delta is not its place"),
        ("0c000000030100", 1, "record 0: a negative length"),
        ("0c000000010101", 1, "record 0: a negative number of headers"),
        ("1000000001010201" + "01", 1, "record 0: a header's key is null"),
        ("0e00000001010000", 1, "record 0: a record is longer or shorter than it says"),
        ("8c8080808000", 1, "record 0: a number has more than 32 bits"),
        ("1e00" + "feffffffffffffffff01" + "00010100", 1, "its timestamp has more than 64 bits"),
        ("1e00" + "ffffffffffffffffff02" + "00010100", 1, "a number has more than 64 bits"),
    ],
)
def test_the_refusal_names_the_record_and_the_cause(raw: str, count: int, cause: str) -> None:
    found = check(bytes.fromhex(raw), count, 1000)
    assert isinstance(found, str)
    assert cause in found
