"""Connections against a tiny server that a test scripts."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import (
    ConnectFailedError,
    DisconnectedError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from dlog.transport import Address, Connection, ConnectionOptions, Request, connect

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def request(correlation_id: int, body: bytes = b"") -> bytes:
    """Frame a request; the test's server reads nothing but its correlation id."""
    return struct.pack(">ihhi", 8 + len(body), 0, 0, correlation_id) + body


def response(correlation_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


async def read_request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(length)
    return struct.unpack(">i", frame[4:8])[0], frame[8:]


@asynccontextmanager
async def node(handler: Handler, **options: Any) -> AsyncIterator[Connection]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    connection = await connect(loop, address, ConnectionOptions(**options))
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()
        server.close()


def check(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 20)

    asyncio.run(bounded())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        correlation_id, body = await read_request(reader)
        writer.write(response(correlation_id, body))


def test_answers_reach_their_callers() -> None:
    async def work() -> None:
        async with node(echo) as connection:

            async def one(number: int) -> None:
                body = number.to_bytes(4, "big") * (1 + number * 97)
                frame = await connection.call(lambda cid: request(cid, body))
                assert frame[4:] == body

            await asyncio.gather(*(one(number) for number in range(100)))
            assert connection.inflight_count == 0

    check(work)


def test_requests_in_flight_are_bounded_and_wait_in_order() -> None:
    seen: list[bytes] = []

    async def work() -> None:
        release = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pending = [await read_request(reader) for _ in range(3)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            release.set()
            for correlation_id, body in pending:
                seen.append(body)
                writer.write(response(correlation_id))
            while True:
                correlation_id, body = await read_request(reader)
                seen.append(body)
                writer.write(response(correlation_id))

        async with node(handler, inflight_max=3) as connection:

            def start(body: bytes) -> "asyncio.Future[memoryview]":
                return asyncio.ensure_future(connection.call(lambda cid: request(cid, body)))

            calls = [start(b"%d" % number) for number in range(10)]
            await release.wait()
            assert connection.inflight_count == 3
            calls[5].cancel()
            late = connection.call(lambda cid: request(cid, b"late"))
            await asyncio.gather(*calls[:5], *calls[6:], late)

    check(work)
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"6", b"7", b"8", b"9", b"late"]


def test_a_missed_deadline_closes_the_connection() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work() -> None:
        async with node(silent, inflight_max=2) as connection:
            patient = asyncio.ensure_future(connection.call(request, 0.3))
            queued = asyncio.ensure_future(connection.call(request, 10))
            waiting = asyncio.ensure_future(connection.call(request, 10))
            waiting_short = asyncio.ensure_future(connection.call(request, 0.05))
            with pytest.raises(RequestTimedOutError):
                await waiting_short
            assert connection.is_open  # nothing was sent for it: nothing is lost
            queued.cancel()
            with pytest.raises(RequestTimedOutError):
                await patient
            with pytest.raises(DisconnectedError):
                await waiting
            assert not connection.is_open
            with pytest.raises(DisconnectedError):
                await connection.call(request)

    check(work)


def test_a_lost_connection_fails_everybody() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async def work() -> None:
        async with node(hang_up) as connection:
            calls = [asyncio.ensure_future(connection.call(request)) for _ in range(20)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(type(result) is DisconnectedError for result in results)
            assert len(set(map(id, results))) == 20

    check(work)


@pytest.mark.parametrize(
    "nonsense",
    [
        response(77),
        struct.pack(">i", -5),
        struct.pack(">i", 1 << 30),
        struct.pack(">i", 2) + b"xx",
    ],
)
def test_nonsense_closes_the_connection(nonsense: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(nonsense)
        await reader.read()

    async def work() -> None:
        async with node(handler) as connection:
            with pytest.raises(ProtocolError):
                await connection.call(request)
            assert not connection.is_open

    check(work)


def test_an_answer_after_the_caller_left_is_dropped() -> None:
    async def work() -> None:
        async with node(echo) as connection:
            left = asyncio.ensure_future(connection.call(request))
            await asyncio.sleep(0)
            left.cancel()
            frame = await connection.call(lambda cid: request(cid, b"mine"))
            assert bytes(frame[4:]) == b"mine"

    check(work)


class Callbacks:
    """Takes what a request ends with; `done` is set when it has."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.errors: list[Exception] = []
        self.done = asyncio.Event()
        self.then: Callable[[], None] = lambda: None

    def on_response(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame[4:]))
        self.then()
        self.done.set()

    def on_error(self, error: Exception) -> None:
        self.errors.append(error)
        self.done.set()

    def send(self, connection: Connection, body: bytes = b"", patience_s: float = 20) -> Request:
        deadline = asyncio.get_running_loop().time() + patience_s
        return connection.send_request(
            lambda cid: request(cid, body), self.on_response, self.on_error, deadline
        )


def test_callbacks_take_answers_in_order_and_may_send_again() -> None:
    async def work() -> None:
        async with node(echo, inflight_max=2) as connection:
            calls = [Callbacks() for _ in range(6)]
            for number, call in enumerate(calls[:4]):
                call.send(connection, b"%d" % number)
            assert (connection.inflight_count, connection.waiting_count) == (2, 2)
            assert not connection.has_room
            cancelled = calls[4].send(connection, b"never")
            cancelled.cancel()
            calls[0].then = lambda: calls[5].send(connection, b"again") and None
            for call in (*calls[:4], calls[5]):
                await call.done.wait()
            assert [call.frames for call in calls[:4]] == [[b"0"], [b"1"], [b"2"], [b"3"]]
            assert (calls[4].frames, calls[4].errors) == ([], [])
            assert calls[5].frames == [b"again"]
            assert connection.is_idle
            assert connection.counters.requests_sent == 5
            assert connection.counters.responses_received == 5

    check(work)


def test_callbacks_hear_why_there_is_no_answer() -> None:
    async def work() -> None:
        async with node(echo, inflight_max=1) as connection:
            refused, unsent, broken, late = (Callbacks() for _ in range(4))

            def nonsense(_frame: memoryview) -> None:
                raise ProtocolError("no such answer")

            def cannot(_correlation_id: int) -> bytes:
                raise ValueError("too long")

            loop = asyncio.get_running_loop()
            deadline = loop.time() + 20
            connection.send_request(request, nonsense, broken.on_error, deadline)
            connection.send_request(cannot, refused.on_response, refused.on_error, deadline)
            unsent.send(connection)
            await broken.done.wait()
            await unsent.done.wait()
            assert type(broken.errors[0]) is ProtocolError
            # The nonsense came first: whoever waited was not sent, and knows it.
            assert isinstance(unsent.errors[0], DisconnectedError)
            assert not unsent.errors[0].was_sent
            assert not connection.is_open
            late.send(connection)
            assert late.errors == []  # never from within the call
            await late.done.wait()
            assert isinstance(late.errors[0], DisconnectedError)
            assert not late.errors[0].was_sent
            assert len(refused.errors) == 1

    check(work)


def test_a_request_that_cannot_be_encoded_harms_no_other() -> None:
    async def work() -> None:
        async with node(echo, inflight_max=1) as connection:

            def cannot(_correlation_id: int) -> bytes:
                raise ValueError("too long")

            with pytest.raises(ValueError, match="too long"):
                await connection.call(cannot)
            first = asyncio.ensure_future(connection.call(lambda cid: request(cid, b"1")))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(connection.call(cannot))
            third = asyncio.ensure_future(connection.call(lambda cid: request(cid, b"3")))
            assert bytes(await first)[4:] == b"1"
            with pytest.raises(ValueError, match="too long"):
                await second
            assert bytes(await third)[4:] == b"3"

    check(work)


def test_who_is_late_behind_others_is_told_and_the_connection_stays() -> None:
    async def work() -> None:
        release = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first, _ = await read_request(reader)
            second, _ = await read_request(reader)
            await release.wait()
            writer.write(response(first) + response(second))
            await echo(reader, writer)

        async with node(slow) as connection:
            patient, hasty, next_one = Callbacks(), Callbacks(), Callbacks()
            patient.send(connection, patience_s=60)
            hasty.send(connection, patience_s=0.05)
            await hasty.done.wait()
            assert isinstance(hasty.errors[0], RequestTimedOutError)
            assert hasty.errors[0].was_sent
            assert connection.is_open
            release.set()
            await patient.done.wait()
            next_one.send(connection, b"x")
            await next_one.done.wait()
            assert (patient.frames, next_one.frames) == ([b""], [b"x"])
            assert (hasty.frames, len(hasty.errors)) == ([], 1)

    check(work)


def test_a_late_one_that_comes_first_in_line_is_waited_for_once_more() -> None:
    async def work() -> None:
        async def forgetful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first, _ = await read_request(reader)
            await read_request(reader)
            await told.wait()
            writer.write(response(first))
            await reader.read()

        told = asyncio.Event()
        async with node(forgetful) as connection:
            patient, hasty, stuck = Callbacks(), Callbacks(), Callbacks()
            patient.send(connection, patience_s=60)
            hasty.send(connection, patience_s=0.05)
            stuck.send(connection, patience_s=60)
            await hasty.done.wait()
            told.set()
            await patient.done.wait()
            assert connection.is_open
            await stuck.done.wait()  # its own deadline is far away
            assert isinstance(stuck.errors[0], DisconnectedError)
            assert len(hasty.errors) == 1

    check(work)


def test_a_peer_that_takes_no_bytes_is_given_up() -> None:
    async def work() -> None:
        async def deaf(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await given_up.wait()

        given_up = asyncio.Event()
        async with node(deaf, request_timeout_s=0.1) as connection:
            body = b"x" * (1 << 20)

            async def send() -> None:
                for _ in range(100):
                    await connection.send(lambda cid: request(cid, body), 60)

            with pytest.raises(DisconnectedError, match="takes no bytes"):
                await send()
            given_up.set()

    check(work)


def test_a_port_that_never_answers_ends_in_time() -> None:
    async def work() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            # Linux lets one more than the backlog in; the next ones hear nothing.
            crowd = [socket.socket() for _ in range(3)]
            for each in crowd:
                each.setblocking(False)
                each.connect_ex(listener.getsockname())
            address = Address(*listener.getsockname())
            options = ConnectionOptions(connect_timeout_s=0.1)
            with pytest.raises(ConnectFailedError, match="no answer in time"):
                await connect(asyncio.get_running_loop(), address, options)
            for each in crowd:
                each.close()

    check(work)


def test_requests_without_answer_obey_the_bound_of_the_socket() -> None:
    async def work() -> None:
        received = 0
        go = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            await go.wait()
            while True:
                correlation_id, body = await read_request(reader)
                received += 1
                if body == b"last":
                    writer.write(response(correlation_id))

        async with node(slow) as connection:
            body = b"x" * (1 << 20)
            with pytest.raises(RequestTimedOutError):
                for _ in range(100):
                    await connection.send(lambda cid: request(cid, body), 0.2)
            sent_before = received
            go.set()
            await connection.call(lambda cid: request(cid, b"last"))
            assert sent_before == 0
            assert 1 < received < 100

    check(work)


def test_nobody_there() -> None:
    async def work() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectFailedError, match="Connection refused"):
            await connect(asyncio.get_running_loop(), address)

    check(work)


def test_the_hook_runs_first_and_may_refuse() -> None:
    async def work() -> None:
        seen: list[bytes] = []

        async def log_in(connection: Connection) -> None:
            frame = await connection.call(lambda cid: request(cid, b"secret"))
            seen.append(bytes(frame[4:]))

        async with node(echo, authenticate=log_in):
            assert seen == [b"secret"]

        async def refuse(_connection: Connection) -> None:
            raise UnsupportedVersionError("no SASL")

        async def stuck(_connection: Connection) -> None:
            await asyncio.sleep(60)

        with pytest.raises(UnsupportedVersionError):
            async with node(echo, authenticate=refuse):
                pass
        with pytest.raises(ConnectFailedError, match="in time"):
            async with node(echo, authenticate=stuck, connect_timeout_s=0.1):
                pass

    check(work)


def tls_context(protocol: int) -> ssl.SSLContext:
    """TLS with anonymous peers: no keys lie about in a repository."""
    context = ssl.SSLContext(protocol)
    if protocol == ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


def test_tls_carries_requests_and_ends_with_the_connection() -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await echo(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                ended.set()
            finally:
                writer.close()

        ended = asyncio.Event()
        server = await asyncio.start_server(
            serve, "127.0.0.1", 0, ssl=tls_context(ssl.PROTOCOL_TLS_SERVER)
        )
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        options = ConnectionOptions(tls=tls_context(ssl.PROTOCOL_TLS_CLIENT))
        connection = await connect(asyncio.get_running_loop(), address, options)
        frames = await asyncio.gather(
            *(connection.call(lambda cid, n=n: request(cid, b"x" * n * 1000)) for n in range(20))
        )
        assert [len(frame) - 4 for frame in frames] == [n * 1000 for n in range(20)]
        connection.close()
        await connection.wait_closed()
        await ended.wait()
        # A peer that must be known, and is not.
        strict = ConnectionOptions(tls=ssl.create_default_context())
        with pytest.raises(ConnectFailedError, match="cannot connect"):
            await connect(asyncio.get_running_loop(), address, strict)
        server.close()

    check(work)


def test_a_peer_that_speaks_no_tls_is_told_as_such() -> None:
    async def work() -> None:
        async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4)  # as dlogd, which finds no length of a frame there
            writer.transport.abort()

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        options = ConnectionOptions(tls=tls_context(ssl.PROTOCOL_TLS_CLIENT))
        with pytest.raises(ConnectFailedError, match="perhaps it speaks no TLS"):
            await connect(asyncio.get_running_loop(), address, options)
        server.close()

    check(work)


def test_a_peer_that_never_shakes_hands_ends_in_time() -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        options = ConnectionOptions(tls=tls_context(ssl.PROTOCOL_TLS_CLIENT), connect_timeout_s=0.1)
        with pytest.raises(ConnectFailedError, match="no answer in time"):
            await connect(asyncio.get_running_loop(), address, options)
        server.close()

    check(work)


def test_correlation_ids_wrap() -> None:
    async def work() -> None:
        async with node(echo) as connection:
            connection._pipeline._correlation_id = (1 << 31) - 2
            for _ in range(3):
                await connection.call(request)

    check(work)


def test_addresses() -> None:
    assert Address.parse("host:9092") == Address("host", 9092)
    assert str(Address.parse("[::1]:9092")) == "[::1]:9092"
    for wrong in ("host", "host:", ":9092", "host:0", "host:70000", "::1:9092", "host:x", ""):
        with pytest.raises(ValueError, match=":"):
            Address.parse(wrong)
    assert replace(ConnectionOptions(), client_id=None).client_id is None


def test_a_request_without_answer_is_done_when_its_bytes_have_left() -> None:
    """Or closing the connection afterwards would lose it."""

    async def work() -> None:
        received = asyncio.Event()
        go = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await go.wait()
            await read_request(reader)
            received.set()

        async with node(slow) as connection:
            body = b"x" * (32 << 20)
            sending = asyncio.ensure_future(connection.send(lambda cid: request(cid, body)))
            await asyncio.sleep(0.05)
            assert not sending.done()
            assert not connection.is_idle
            go.set()
            await sending
            connection.close()
            await received.wait()
            late = asyncio.ensure_future(connection.send(lambda cid: request(cid)))
            with pytest.raises(DisconnectedError):
                await late

    check(work)


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".com", "nul\0l"])
def test_a_host_name_that_is_none(host: str) -> None:
    async def work() -> None:
        with pytest.raises(ConnectFailedError, match="cannot connect to"):
            await connect(asyncio.get_running_loop(), Address(host, 9092))

    check(work)
