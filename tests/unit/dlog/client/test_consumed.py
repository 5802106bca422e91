"""Records that an iteration was given and has not come to: none is lost, none comes twice."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.batch import _pure, native
from dlog.batch.decoding import bounds, open_batches, read_shaped
from dlog.batch.records import Record, encode
from dlog.client.cluster.bootstrap import parse_bootstrap
from dlog.client.consumed import ConsumedRecord, Stash
from dlog.transport import Address
from dlog.types import PartitionId, TopicPartition

KEYS = [TopicPartition("t", PartitionId(number)) for number in range(3)]


def records(key: TopicPartition, first: int, count: int) -> list[ConsumedRecord]:
    """Return records of a partition."""
    return [
        ConsumedRecord(None, None, (), -1, first + number, key.topic, key.partition)
        for number in range(count)
    ]


def test_a_record_says_where_it_stands() -> None:
    data = encode([Record(b"k", b"v", (("h", None),), 5)], base_offset=7)
    wanted = bounds(0, None, None, None)
    (record,), end, _ = read_shaped([data], wanted, ConsumedRecord, ("t", 2))
    assert record == ConsumedRecord(b"k", b"v", (("h", None),), 5, 7, "t", 2)
    assert (record.topic, record.partition, record.offset, end) == ("t", 2, 7, 8)
    assert ConsumedRecord._fields[: len(Record._fields)] == Record._fields


def test_what_an_iteration_left_is_taken_first() -> None:
    stash = Stash()
    steps = stash.fill(records(KEYS[0], 0, 3) + records(KEYS[1], 0, 3))
    assert [next(steps).offset for _ in range(2)] == [0, 1]
    assert stash.first_offset(KEYS[0]) == 2
    assert stash.first_offset(KEYS[1]) == 0
    assert stash.first_offset(KEYS[2]) is None
    assert [each.offset for each in stash.take(2)] == [2, 0]
    assert next(steps, None) is None
    assert [each.offset for each in stash.take(9)] == [1, 2]
    assert stash.take(9) == []


def test_what_was_left_is_taken_up_to_a_size() -> None:
    stash = Stash()
    left = [each._replace(key=b"k", value=b"123") for each in records(KEYS[0], 0, 4)]
    stash.fill(left)
    assert stash.take(9, 1) == left[:1]  # one always
    assert stash.take(9, 8) == left[1:3]
    assert stash.take(9, 99) == left[3:]
    assert stash.take(9, 1) == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(1, 4)),
            st.tuples(st.just("take"), st.integers(1, 4)),
            st.tuples(st.just("drop"), st.integers(0, 2)),
        )
    )
)
def test_the_stash_against_a_plain_list(steps: list[tuple[str, int]]) -> None:
    stash = Stash()
    model = [each for number in range(4) for key in KEYS for each in records(key, number, 1)]
    iterator: Iterator[ConsumedRecord] = stash.fill(list(model))
    for step, number in steps:
        if step == "step":
            # A loop takes up some of what is left; the rest stays behind it.
            iterator = stash.fill(stash.take(number + 1))
            assert [each for _, each in zip(range(number), iterator, strict=False)] == model[
                :number
            ]
            del model[:number]
        elif step == "take":
            assert stash.take(number) == model[:number]
            del model[:number]
        else:
            stash.drop(KEYS[number])
            model = [each for each in model if each.partition != number]
        for key in KEYS:
            first = next((each.offset for each in model if each.partition == key.partition), None)
            assert stash.first_offset(key) == first
        assert len(stash) == len(model)


def test_bootstrap_addresses_as_programs_write_them() -> None:
    one, two = Address("a", 1), Address("b", 2)
    assert parse_bootstrap("a:1") == [one]
    assert parse_bootstrap("a:1, b:2,a:1") == [one, two]
    assert parse_bootstrap(one) == [one]
    assert parse_bootstrap([one, "b:2"]) == [one, two]
    for nothing in ("", ",", []):
        try:
            parse_bootstrap(nothing)
        except ValueError as error:
            assert "no bootstrap" in str(error)
        else:
            raise AssertionError


@pytest.mark.parametrize("decode", [native.decode_records, _pure.decode_records])
def test_both_forms_of_the_codec_make_the_records(decode: Callable[..., Any]) -> None:
    data = encode([Record(b"k", None, (), 5), Record(None, b"v", (), 5)], base_offset=3)
    everything = bounds(0, None, None, None)
    batches = open_batches([data], everything).batches
    made, is_complete = decode(batches, *everything, (ConsumedRecord, "t", 2))
    assert is_complete
    assert made == [
        ConsumedRecord(b"k", None, (), 5, 3, "t", 2),
        ConsumedRecord(None, b"v", (), 5, 4, "t", 2),
    ]
    assert {type(record) for record in made} == {ConsumedRecord}


def test_the_compiled_codec_makes_nothing_but_plain_tuples() -> None:
    class WithState(ConsumedRecord):  # has a __dict__
        pass

    if not native.IS_COMPILED:
        return  # the pure one makes what it is told to
    everything = bounds(0, None, None, None)
    for shape in ((), [ConsumedRecord], (dict, "t"), (WithState, "t", 1), (ConsumedRecord, [], 1)):
        with pytest.raises(TypeError):
            native.decode_records([], *everything, shape)  # type: ignore[arg-type]
    batches = open_batches([encode([Record(b"k")])], everything).batches
    (record,), _ = native.decode_records(batches, *everything, (ConsumedRecord, "t", 0))
    assert not gc.is_tracked(record)
