"""What one client writes every other client reads, byte for byte."""

from collections.abc import Callable

import pytest

from tests.clients.conftest import NAMES
from tests.clients.drivers.driver import CODECS, Driver, Header, Rec
from tests.clients.records import check_same, mixed


def _readable(record: Rec) -> Rec:
    """kcat prints headers as text in which an empty and a missing value look alike to us."""
    headers: list[Header] = [(name, value) for name, value in record.headers if value]
    return Rec(
        key=record.key,
        value=record.value,
        headers=tuple(headers),
        timestamp_ms=record.timestamp_ms,
        partition=record.partition,
        offset=record.offset,
    )


@pytest.mark.parametrize("writer", NAMES)
def test_all_read_what_one_wrote(
    clients: Callable[[str], Driver], topic_name: str, writer: str
) -> None:
    driver = clients(writer)
    driver.create_topic(topic_name, len(CODECS))
    written = {}
    for partition, codec in enumerate(CODECS):
        written[partition] = mixed(driver, partition, large=False)
        driver.produce(topic_name, written[partition], codec=codec, idempotent=bool(partition % 2))
    for name in NAMES:
        reader = clients(name)
        for partition, records in written.items():
            read = reader.consume(topic_name, partition, "earliest", len(records))
            if "exact_headers" in reader.lacks:
                read = [_readable(record) for record in read]
                records = [_readable(record) for record in records]
            print(f"{name} reads {CODECS[partition]}")
            check_same(read, records)
