"""Batches as old clients sent them (`tests/golden/old_clients`): taken, and their times are found.

Each file has the batches of `tests.suites.old_clients.mixed` in one codec, as they were on the wire
to a node. `make suites` does the same with the clients themselves, beside Apache Kafka.
"""

from pathlib import Path

import pytest

from dlog.batch.header import BATCH_STRUCT, BatchHeader, decode_header, iter_headers
from dlog.batch.record_times import first_record, newest_of
from dlog.batch.records import RECORDS_BYTES_MAX, decode
from dlog.compression import Codec
from dlogd.replication.partition.batch_validation import check_produced
from dlogd.replication.partition.record_validation import times_in
from tests.fakes.checked import CHECKED
from tests.fakes.front import SETTINGS
from tests.suites.old_clients import CLIENTS, Record, mixed

FOLDER = Path(__file__).with_name("old_clients")
FILES = sorted(path.name for path in FOLDER.glob("*.bin"))
BEGAN_MS = 1_700_000_000_000
PLAN = mixed(BEGAN_MS)


def batches_of(name: str) -> list[tuple[BatchHeader, bytearray]]:
    data = (FOLDER / name).read_bytes()
    found = [
        (header, bytearray(data[position : position + header.batch_bytes]))
        for position, header in iter_headers(data)
    ]
    assert sum(len(batch) for _, batch in found) == len(data)
    return found


def test_there_is_a_file_of_each_client_and_codec() -> None:
    wanted = {f"{client.name}-{codec}.bin" for client in CLIENTS for codec in client.codecs}
    # sarama 1.22 sends zstd by a version of Produce that no server takes with it (KIP-110).
    assert set(FILES) == wanted - {"sarama-1.22.1-zstd.bin"}


@pytest.mark.parametrize("name", FILES)
def test_batches_hold_what_was_sent(name: str) -> None:
    found = [
        [
            Record(each.timestamp_ms, each.key, each.value, list(each.headers))
            for each in decode(memoryview(batch))
        ]
        for _, batch in batches_of(name)
    ]
    assert found == PLAN


@pytest.mark.parametrize("name", FILES)
def test_the_append_takes_them_and_corrects_what_it_looks_at(name: str) -> None:
    for (header, batch), records in zip(batches_of(name), PLAN, strict=True):
        newest_ms = max(record.timestamp for record in records)
        plain = header.codec is Codec.NONE
        check_produced(SETTINGS, batch, 0, len(batch), BEGAN_MS)
        says_ms = decode_header(memoryview(batch)).max_timestamp_ms
        assert says_ms == (newest_ms if plain else header.max_timestamp_ms)
        times = None if plain else times_in(bytes(batch), RECORDS_BYTES_MAX)
        check_produced(CHECKED, batch, 0, len(batch), BEGAN_MS, times)
        assert decode_header(memoryview(batch)).max_timestamp_ms == newest_ms


@pytest.mark.parametrize("name", FILES)
def test_times_are_those_of_the_records(name: str) -> None:
    for (_, batch), records in zip(batches_of(name), PLAN, strict=True):
        view, times_ms = memoryview(batch), [record.timestamp for record in records]
        assert newest_of(view, BATCH_STRUCT.unpack_from(view)) == max(times_ms)
        for asked_ms in {*times_ms, *(each + 1 for each in times_ms), BEGAN_MS - 1}:
            found = first_record(view, asked_ms, 0)
            wanted = next((n for n, each in enumerate(times_ms) if each >= asked_ms), None)
            assert (None if found is None else found.offset) == wanted


def test_heads_of_old_clients_cannot_be_believed() -> None:
    liars = {
        name
        for name in FILES
        for (header, _), records in zip(batches_of(name), PLAN, strict=True)
        if header.max_timestamp_ms != max(record.timestamp for record in records)
    }
    assert liars == {name for name in FILES if name.startswith("sarama")}
