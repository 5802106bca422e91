"""Connections against a tiny server that a test scripts: answers, callbacks, what ends them."""

import asyncio
import struct
from dataclasses import replace

import pytest

from dlog.errors import (
    ConnectFailedError,
    DisconnectedError,
    ProtocolError,
    UnsupportedVersionError,
)
from dlog.transport import Address, Connection, ConnectionOptions, connect
from tests.fakes.bounded_runs import check
from tests.fakes.scripted_node import Callbacks, echo, node, read_request, request, response


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
