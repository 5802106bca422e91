"""One record of a batch, found by time: compiled, in Python, and by a plain list of records."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.batch._pure_find import find_record
from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES, patch
from dlog.batch.record_times import RecordTime, first_record, newest_of, newest_record
from dlog.batch.records import Record, encode
from dlog.compression import Codec
from dlog.errors import CorruptMessageError
from tests.fakes.lies import lying

speedups: Any = pytest.importorskip("dlog.batch._speedups", reason="the extension is not built")

times = st.integers(-3, 30)
heads = st.none() | st.integers(-5, 50) | st.just(2**62)


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except CorruptMessageError:
        return CorruptMessageError


@given(
    st.lists(times, min_size=1, max_size=12),
    heads,
    st.sampled_from(list(Codec)),
    st.integers(-2, 40),
    st.integers(0, 20),
)
def test_searches_agree_with_a_plain_list(
    timestamps: list[int], head_ms: int | None, codec: Codec, wanted_ms: int, start: int
) -> None:
    batch = lying(timestamps, head_ms, codec)
    patch(batch, 0, 5, 0)
    fields = BATCH_STRUCT.unpack_from(batch)
    found = [RecordTime(ms, 5 + n) for n, ms in enumerate(timestamps) if 5 + n >= start]
    match = [each for each in found if each.timestamp_ms >= wanted_ms]
    assert first_record(batch, wanted_ms, start) == (match[0] if match else None)
    newest = max((each.timestamp_ms for each in found), default=None)
    expected = next((each for each in found if each.timestamp_ms == newest), None)
    assert newest_record(batch, start) == expected
    assert newest_of(memoryview(batch), fields) == max(-1, *timestamps)


@given(
    st.binary(max_size=60)
    | st.lists(times, min_size=1, max_size=5).map(
        lambda found: bytes(encode([Record(timestamp_ms=ms) for ms in found])[HEADER_BYTES:])
    ),
    st.integers(-1, 6),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 6),
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_both_twins_say_the_same_of_any_bytes(
    data: bytes, count: int, base_ms: int, wanted_ms: int, first: int, at: int, byte: int
) -> None:
    changed = bytearray(data)
    if at < len(changed):
        changed[at] = byte
    arguments = (bytes(changed), count, base_ms, wanted_ms, first)
    assert outcome(speedups.find_record, *arguments) == outcome(find_record, *arguments)


def test_arguments_are_checked() -> None:
    for arguments in ((), (b"", 1, 2, 3), (b"", 1, 2, 3, 2**64), ("text", 1, 2, 3, 4)):
        with pytest.raises((TypeError, OverflowError)):
            speedups.find_record(*arguments)
