"""Frames of the replication stream: what was written is read, nonsense is refused."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ProtocolError
from dlogd.replication import protocol
from dlogd.replication.protocol import Refusal, Subscription

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
U32 = st.integers(0, 2**32 - 1)


def opened(frame: bytes, kind: int, records: int = 0) -> tuple[memoryview, int, int, int]:
    """Return buffer, position, end and count of a frame."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4 + records
    buffer = memoryview(frame + bytes(records))
    found, count, position = protocol.parse_kind(buffer, 4, len(buffer))
    assert found == kind
    return buffer, position, len(buffer), count


@given(st.lists(st.builds(Subscription, U32, st.uuids(), I32, I32, I64, I32, I64, I64)))
def test_subscriptions(rows: list[Subscription]) -> None:
    frame = protocol.encode_subscribe(rows)
    assert protocol.parse_subscribe(*opened(frame, protocol.SUBSCRIBE)) == rows


@given(st.lists(U32))
def test_unsubscriptions(handles: list[int]) -> None:
    frame = protocol.encode_unsubscribe(handles)
    assert protocol.parse_unsubscribe(*opened(frame, protocol.UNSUBSCRIBE)) == handles


@given(st.integers(0, 2**64 - 1), st.lists(st.tuples(U32, I64, I64, I64)))
def test_progress(taken: int, rows: list[tuple[int, int, int, int]]) -> None:
    frame = protocol.encode_progress(taken, rows)
    found, read = protocol.parse_progress(*opened(frame, protocol.PROGRESS))
    assert (found, list(read)) == (taken, rows)


@given(
    st.lists(st.tuples(U32, I64, I64, I64, st.integers(0, 1000), st.integers(0, 255)), max_size=20)
)
def test_data(rows: list[tuple[int, int, int, int, int, int]]) -> None:
    size = sum(row[4] for row in rows)
    frame = protocol.encode_data(rows, size)
    found, records = protocol.parse_data(*opened(frame, protocol.DATA, size))
    assert (found, records) == (rows, len(frame))


@given(st.lists(st.builds(Refusal, U32, st.integers(-1, 200), I32, I64, I64, I64)))
def test_refusals(rows: list[Refusal]) -> None:
    frame = protocol.encode_refused(rows)
    assert protocol.parse_refused(*opened(frame, protocol.REFUSED)) == rows


@given(st.binary(max_size=200))
def test_nonsense_is_refused(data: bytes) -> None:
    buffer = memoryview(data)
    try:
        _, count, position = protocol.parse_kind(buffer, 0, len(data))
    except ProtocolError:
        return
    for parse in (
        protocol.parse_subscribe,
        protocol.parse_unsubscribe,
        protocol.parse_progress,
        protocol.parse_data,
        protocol.parse_refused,
    ):
        try:
            parse(buffer, position, len(data), count)
        except ProtocolError:
            pass


def test_sizes_that_do_not_fit_are_refused() -> None:
    frame = protocol.encode_data([(1, 0, 0, 0, -5, 0)], -5)
    with pytest.raises(ProtocolError):
        protocol.parse_data(memoryview(frame), 12, len(frame), 1)
    with pytest.raises(ProtocolError):
        protocol.parse_subscribe(memoryview(bytes(50)), 0, 50, 1)


GOLDEN = Subscription(7, UUID(int=1), 2, 3, 40, 3, 10, 39)


def test_golden_bytes() -> None:
    """docs/formats/replication.md."""
    assert protocol.encode_subscribe([GOLDEN]).hex() == (
        "00000040" "01000000" "00000001"
        "00000007" "00000000000000000000000000000001" "00000002" "00000003"
        "0000000000000028" "00000003" "000000000000000a" "0000000000000027"
    )  # fmt: skip
    assert protocol.encode_unsubscribe([7]).hex() == "0000000c020000000000000100000007"
    assert protocol.encode_progress(5, [(7, 39, 40, 10)]).hex() == (
        "0000002c" "03000000" "00000001" "0000000000000005"
        "00000007" "0000000000000027" "0000000000000028" "000000000000000a"
    )  # fmt: skip
    assert protocol.encode_data([(7, 30, 10, 40, 2, 1)], 2).hex() == (
        "0000002b" "04000000" "00000001"
        "00000007" "000000000000001e" "000000000000000a" "0000000000000028" "00000002" "01"
    )  # fmt: skip
    assert protocol.encode_refused([Refusal(7, 0, 2, 35, 10, 60)]).hex() == (
        "0000002a" "05000000" "00000001"
        "00000007" "0000" "00000002" "0000000000000023" "000000000000000a" "000000000000003c"
    )  # fmt: skip
