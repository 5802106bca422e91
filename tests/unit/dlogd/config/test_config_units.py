"""Texts with units: what is accepted, what is refused, and that formats read back."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlogd.config import units
from dlogd.config.units import Address, DiskReserve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("1.5GiB", 1610612736),
        ("100MB", 100_000_000),
        ("2TiB", 2 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "1.3B", "1 GiBB", "GiB", "1e3", "0x10", "1_000", "١", "9" * 30, "1GiB x"]
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("250ms", 250),
        ("1s", 1000),
        ("1.5s", 1500),
        ("10min", 600_000),
        ("10m", 600_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
    ],
)
def test_durations(text: str, value: int) -> None:
    assert units.parse_duration_ms(text) == value


@pytest.mark.parametrize("text", ["5", "", "-1s", "0.5ms", "1 year", "s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|whole"):
        units.parse_duration_ms(text)


def test_bare_milliseconds_and_unlimited() -> None:
    assert units.parse_milliseconds("250") == 250
    assert units.parse_milliseconds("1s") == 1000
    assert units.parse_duration_ms_or_unlimited("-1") == -1
    assert units.parse_bytes_or_unlimited("unlimited") == -1


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("kafka-1.example.com:0", Address("kafka-1.example.com", 0)),
        ("[::1]:9092", Address("::1", 9092)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert units.parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "9092", ":9092", "host", "host:", "host:x", "host:65536", "::1:9092", "[::1", "[::1]9092",
     "[host]:1", "a b:1",
        "h..x:1", "http://a:1", "host:-1", "host:٣",
     "h..x:1", "x" * 64 + ":1"],
)  # fmt: skip
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        units.parse_address(text)


def test_advertised_addresses() -> None:
    assert units.parse_advertised_address("kafka-1") == Address("kafka-1", 0)
    assert units.parse_advertised_address("[::1]:7") == Address("::1", 7)
    assert units.format_advertised_address(Address("kafka-1", 0)) == "kafka-1"
    with pytest.raises(ValueError, match="connect"):
        units.parse_advertised_address("0.0.0.0:9092")


def test_disk_reserve() -> None:
    gib = 1 << 30
    assert units.parse_disk_reserve("auto").of(1000 * gib) == gib
    assert units.parse_disk_reserve("auto").of(10 * gib) == gib // 2
    assert units.parse_disk_reserve("2.5%").of(1000) == 25
    assert units.parse_disk_reserve("10GiB").of(1) == 10 * gib
    assert units.parse_disk_reserve("2.5%") == DiskReserve(percent=Decimal("2.5"))
    for wrong in ("100%", "-1", "much", "5 % of it"):
        with pytest.raises(ValueError, match=r"auto|no space"):
            units.parse_disk_reserve(wrong)


@given(st.integers(0, 1 << 60))
def test_formats_read_back(value: int) -> None:
    if value < 10**18:
        assert units.parse_bytes(units.format_bytes(value)) == value
        assert units.parse_duration_ms(units.format_duration_ms(value)) == value
