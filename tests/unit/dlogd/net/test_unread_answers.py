"""Large answers that nobody reads: bounded, and the address that keeps most of them pays."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from dlogd.net.unread_answers import UnreadAnswers
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.front import (
    Front,
    fetch_frame,
    produce_frame,
    request_frame,
    response_of,
    run_on,
    until,
)
from tests.fakes.logs import batch_of

MIB = 1 << 20
Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


class Keeper:
    """A connection, as far as its answers go."""

    def __init__(self, address: str, size: int) -> None:
        self.address = address
        self.kept_bytes = size
        self.has_ended = False

    def give_up(self) -> None:
        self.has_ended = True
        self.kept_bytes = 0


def test_the_slowest_of_the_address_with_most_is_ended() -> None:
    told: list[str] = []
    unread = UnreadAnswers(100, told.append)
    greedy = [Keeper("a", 40), Keeper("a", 40)]
    modest = Keeper("b", 30)
    for each in (modest, *greedy):
        unread.note(each)
    assert [each.has_ended for each in (modest, *greedy)] == [False, True, False]
    assert told == ["a"]


def test_who_has_read_counts_no_more_and_one_answer_alone_always_goes() -> None:
    unread = UnreadAnswers(100, print)
    quick, huge = Keeper("a", 90), Keeper("b", 500)
    unread.note(quick)
    quick.kept_bytes = 0
    unread.note(huge)
    assert not quick.has_ended and not huge.has_ended


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.integers(0, 60))))
def test_they_keep_no_more_than_the_bound(steps: list[tuple[int, str, int]]) -> None:
    """Keepers read, ask again and leave at random."""
    told: list[str] = []
    unread = UnreadAnswers(100, told.append)
    keepers: dict[int, Keeper] = {}
    for number, address, size in steps:
        keeper = keepers.setdefault(number, Keeper(address, 0))
        if keeper.has_ended:
            continue
        keeper.kept_bytes = size
        if size:
            unread.note(keeper)
        elif address == "a":
            unread.forget(keeper)
        kept = [each.kept_bytes for each in keepers.values() if each.kept_bytes]
        assert sum(kept) <= 100 or len(kept) == 1
    assert len(told) == sum(each.has_ended for each in keepers.values())


def test_a_crowd_that_reads_nothing_is_ended_and_who_reads_is_not(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, inflight_bytes_max=32 * MIB) as front:
            body = bytes(2 * MIB)

            async def answer(header: object) -> bytes:
                return response_of(header, body)  # type: ignore[arg-type]

            front.dispatcher.answer = answer
            deaf = []
            for _ in range(8):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", front.port))
                deaf.append(sock)
                await asyncio.get_running_loop().sock_sendall(sock, request_frame() * 2)
            metrics = front.telemetry.server
            await until(lambda: metrics.connections_unread_total >= 4)
            honest = await front.connect()
            for _ in range(10):
                await honest.send(request_frame())
                assert len(await honest.receive()) == len(body) + 4
            await until(lambda: front.listener.connection_count <= 5)
            for sock in deaf:
                sock.close()
            honest.close()
            await until(lambda: not front.listener.connection_count)
            unread = front.listener.limits.held.unread
            assert unread is not None and not unread._readers

    run(scenario)
    (line,) = [each.getMessage() for each in caplog.records if "did not read" in each.getMessage()]
    assert line.endswith("count=1")


def test_answers_of_records_are_not_among_them(run: Run, tmp_path: Path) -> None:
    """They stay in segments: a consumer may rest for as long as it likes."""

    async def scenario() -> None:
        config = LogConfig(segment_bytes=16 * MIB, preallocate_bytes=0)
        async with Front.open(tmp_path, config=config, inflight_bytes_max=MIB) as front:
            writer = await front.connect()
            for _ in range(8):
                await writer.send(produce_frame("t", batch_of(bytes(MIB // 2))))
                await writer.produced()
            resting = [await front.connect() for _ in range(8)]
            for each in resting:
                await each.send(fetch_frame([("t", 0)], max_bytes=4 * MIB, partition_bytes=4 * MIB))
            await until(lambda: front.telemetry.api("FETCH").requests == 8)
            assert front.listener.connection_count == 9
            for each in resting:
                assert len((await each.fetched())["t"][1]) > 3 * MIB
            assert not front.telemetry.server.connections_unread_total

    run(scenario)
