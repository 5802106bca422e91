"""Addresses as people write them: Kafka's schemes, final dots, and both families behind `[::]`."""

import asyncio
import errno
from typing import Any

import pytest

from dlog.address import Address, is_any_ipv6
from dlog.client.cluster.bootstrap import parse_bootstrap
from dlogctl.settings import parse_addresses
from dlogd.config import units
from dlogd.config.load import load_config
from dlogd.net import listen_sockets
from dlogd.status import http_hosts


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("h:9092", "h", 9092),
        (" h:9092 ", "h", 9092),
        ("PLAINTEXT://h:9092", "h", 9092),
        ("plaintext://[::1]:9092", "::1", 9092),
        ("log1.example.org.:9092", "log1.example.org.", 9092),
        ("PLAINTEXT://log1.example.org.:9092", "log1.example.org.", 9092),
    ],
)
def test_every_reader_of_addresses_takes_what_kafka_takes(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert parse_bootstrap(f"{text},other:1") == [Address(host, port), Address("other", 1)]
    assert parse_addresses(text) == (Address(host, port),)
    assert units.parse_address(text) == units.Address(host, port)
    assert units.parse_advertised_address(text) == units.Address(host, port)
    assert units.parse_node_at(f"3@{text.strip()}").address == units.Address(host, port)


@pytest.mark.parametrize(
    ("text", "why", "cure"),
    [
        ("SSL://h:9093", "the scheme SSL of 'SSL://h:9093' asks for TLS", "Write h:9093"),
        ("SASL_SSL://h:9094", "SASL_SSL", "without authentication"),
        ("sasl_plaintext://h:9094", "asks for SASL", "without authentication"),
        ("http://h:9092", "the scheme http", "address alone: h:9092"),
        ("CLIENTS://h:9092", "none of Kafka's", "alone: h:9092"),
        ("PLAINTEXT://PLAINTEXT://h:1", "PLAINTEXT", ""),
        ("PLAINTEXT://", "", ""),
        ("SSL://", "SSL", "Write host:port"),
    ],
)
def test_another_scheme_is_named_with_the_cure(text: str, why: str, cure: str) -> None:
    for parse in (Address.parse, parse_bootstrap, parse_addresses, units.parse_address):
        with pytest.raises(ValueError) as caught:
            parse(text)
        assert why in str(caught.value)
        assert cure in str(caught.value)


@pytest.mark.parametrize("text", ["h..:1", ".:1", "h..", "-h.:1", "."])
def test_one_final_dot_is_enough(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        units.parse_address(text)


def test_certificates_and_requests_have_no_final_dot() -> None:
    assert Address("log1.example.org.", 1).tls_name == "log1.example.org"
    assert Address("10.0.0.1", 1).tls_name == "10.0.0.1"
    config = load_config("advertised.address: log1.example.org.\n")
    assert "log1.example.org" in http_hosts.names_of(config, "")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("::", True), ("0:0:0:0:0:0:0:0", True), ("::0", True), ("::1", False)),
        *(("0.0.0.0", False), ("host", False), ("", False), ("::ffff:0.0.0.0", False)),
    ],
)
def test_the_wildcard_of_ipv6(host: str, expected: bool) -> None:
    assert is_any_ipv6(host) is expected
    assert units.Address(host, 1).is_wildcard is (expected or host == "0.0.0.0")


class Greeter(asyncio.Protocol):
    """Says who connected."""

    def connection_made(self, transport: Any) -> None:
        transport.write(str(transport.get_extra_info("peername")[0]).encode())
        transport.close()


async def greeting(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


@pytest.mark.parametrize("start_serving", [True, False])
def test_the_wildcard_of_ipv6_listens_to_both_families(start_serving: bool) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        server, port = await listen_sockets.bind(
            loop, Greeter, "::", 0, start_serving=start_serving
        )
        async with server:
            await server.start_serving()
            # Peers keep their own addresses: limits and log lines are by address.
            assert await greeting("127.0.0.1", port) == "127.0.0.1"
            assert await greeting("::1", port) == "::1"
            with pytest.raises(OSError) as caught:
                await listen_sockets.bind(loop, Greeter, "::", port)
            assert caught.value.errno == errno.EADDRINUSE

    asyncio.run(test())


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_other_addresses_have_one_family(host: str, other: str) -> None:
    async def test() -> None:
        server, port = await listen_sockets.bind(asyncio.get_running_loop(), Greeter, host, 0)
        async with server:
            assert await greeting(host, port) == host
            with pytest.raises(OSError):
                await greeting(other, port)

    asyncio.run(test())


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_a_host_without_ipv6_listens_to_ipv4(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        create = loop.create_server

        async def without_ipv6(factory: Any, host: Any, port: int, **options: Any) -> Any:
            if "::" in host:
                raise OSError(code, "no IPv6 here")
            return await create(factory, host, port, **options)

        monkeypatch.setattr(loop, "create_server", without_ipv6)
        server, port = await listen_sockets.bind(loop, Greeter, "::", 0)
        async with server:
            assert await greeting("127.0.0.1", port) == "127.0.0.1"

    asyncio.run(test())
    assert "Listening on IPv4 only" in caplog.text
