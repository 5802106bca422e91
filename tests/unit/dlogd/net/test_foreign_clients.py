"""Clients of other protocols at the Kafka port: real TLS and HTTP clients, on both loops."""

import asyncio
import contextlib
import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from dlog.errors import ProtocolError
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.transport import RaftTransport
from dlogd.net import foreign_protocols
from dlogd.net.foreign_clients import ForeignClients
from dlogd.net.foreign_protocols import HTTP, HTTP2, TLS, ForeignProtocolError
from dlogd.telemetry.admission_metrics import FOREIGN
from tests.fakes.front import Front, request_frame, run_on, until
from tests.fakes.probed_process import process
from tests.fakes.raft_handshakes import hello_of
from tests.fakes.randomness import SeededRandomness

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


def counted(front: Front) -> dict[tuple[str, ...], float]:
    """Return how many clients of other protocols were counted, by listener and protocol."""
    return {each.labels: each.value for each in front.admission.samples() if each.spec is FOREIGN}


def about(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "peer=" in line]


def test_a_tls_client_is_called_one(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            for _ in range(3):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.open_connection(
                        "127.0.0.1", front.port, ssl=ssl.create_default_context()
                    )
            await until(lambda: not front.listener.connection_count)
            assert counted(front) == {("clients", "tls"): 3}
            assert front.telemetry.server.connections_broken_total == 3

    with caplog.at_level(logging.INFO):
        run(scenario)
    (line,) = about(caplog)  # of the three: once a minute for an address
    assert "protocol=tls count=1 error='the first bytes are those of TLS" in line
    assert "hint='set security.protocol=PLAINTEXT in the client" in line
    assert "bytes is outside" not in line


def test_an_http_client_gets_a_sentence(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(url: str, data: bytes | None) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, data, timeout=10) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            for data in (None, b"a body"):
                url = f"http://127.0.0.1:{front.port}/metrics"
                status, text = await asyncio.to_thread(ask, url, data)
                assert (status, text) == (
                    400,
                    "This port speaks the protocol of Kafka, not HTTP.\n",
                )
            await until(lambda: not front.listener.connection_count)
            assert counted(front) == {("clients", "http"): 2}

    with caplog.at_level(logging.INFO):
        run(scenario)
    (line,) = about(caplog)
    assert "protocol=http" in line and "hint='ask http.address" in line


@pytest.mark.parametrize("pieces", [[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], [b"P", b"RI", b" * HT"]])
def test_http_2_in_pieces(run: Run, tmp_path: Path, pieces: list[bytes]) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            for piece in pieces:
                await client.send(piece)
                await asyncio.sleep(0)
            assert await client.is_closed_by_peer()
            assert counted(front) == {("clients", "http2"): 1}

    run(scenario)


def test_an_answer_on_its_way_is_not_followed_by_http(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            never = asyncio.get_running_loop().create_future()

            async def answer() -> bytes:
                return bytes(await never)

            front.dispatcher.answer = lambda _header: answer()
            client = await front.connect()
            await client.send(request_frame(5), b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert await client.reader.read() == b""
            await until(lambda: not front.listener.connection_count)
            assert counted(front) == {("clients", "http"): 1}

    run(scenario)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\x16\x03\x01\x02", TLS),
        (b"\x16\x03\x03\x00\x7a", TLS),
        *((each, HTTP) for each in (b"GET ", b"POST", b"HEAD", b"PUT ", b"CONNECT x", b"DELETE")),
        (b"PRI * HTTP/2.0", HTTP2),
        (b"\x00\x00\x00\x10", None),
        (b"get ", None),
        (b"GET", None),
        (b"\x16", None),
        (b"", None),
        (b"\xff\xff\xff\xff", None),
    ],
)
def test_first_bytes(head: bytes, expected: foreign_protocols.Foreign | None) -> None:
    assert foreign_protocols.recognise(head) is expected
    assert foreign_protocols.recognise(bytearray(head)) is expected
    why = foreign_protocols.explained(ProtocolError("too long"), head)
    assert why == ("too long" if expected is None else expected.meaning)


def test_one_line_a_minute_for_an_address() -> None:
    counts: list[str] = []
    clients = ForeignClients(counts.append)
    error = ForeignProtocolError(TLS)
    said = [
        clients.parting(error, None, "10.0.0.1", now_us)
        for now_us in (0, 1, 59_999_999, 60_000_000)
    ]
    assert [line is not None for line in said] == [True, False, False, True]
    assert "count=3" in str(said[3])
    assert clients.parting(error, None, "10.0.0.2", 2) is not None
    assert clients.parting(ForeignProtocolError(HTTP), None, "10.0.0.2", 3) is not None
    assert counts == ["tls"] * 5 + ["http"]
    assert "error=other" in str(clients.parting(ProtocolError("other"), None, "10.0.0.1", 3))


def test_clients_that_send_nonsense_have_one_line_a_minute_for_an_address() -> None:
    clients = ForeignClients()
    lines = [
        clients.parting(ProtocolError("nonsense"), None, host, second * 1_000_000)
        for host in ("192.0.2.1", "192.0.2.2")
        for second in range(0, 180, 3)
    ]
    said = [line for line in lines if line is not None]
    assert [line.fields["count"] for line in said] == [1, 20, 20] * 2


async def speak_tls(port: int) -> None:
    """Connect to a port as a client of TLS does."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())


async def speak_http(port: int) -> None:
    """Connect to a port as a client of HTTP does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


SPEAKERS = pytest.mark.parametrize(
    ("speak", "named"),
    [(speak_tls, TLS), (speak_http, HTTP)],
    ids=["tls", "http"],
)


@SPEAKERS
def test_the_internal_port_names_them(
    speak: Callable[[int], Awaitable[None]],
    named: foreign_protocols.Foreign,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with process() as (address, _):
            await speak(address.port)

    asyncio.run(scenario())
    assert named.meaning in caplog.text


@SPEAKERS
def test_the_port_of_the_metadata_names_them(
    speak: Callable[[int], Awaitable[None]],
    named: foreign_protocols.Foreign,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        transport = RaftTransport(
            hello=hello_of(1, 0),
            secret=b"sixteen bytes or more",
            randomness=SeededRandomness(1),
            timings=RaftTimings(),
            on_up=lambda *_: None,
            on_down=lambda *_: None,
            on_message=lambda *_: None,
        )
        await transport.start("127.0.0.1", 0)
        await speak(transport.port)
        await transport.close()

    asyncio.run(scenario())
    assert named.meaning in caplog.text
