"""A Fetch of several partitions, one of which cannot be read: the others are served."""

import asyncio
from pathlib import Path

import pytest

from dlog.errors import CorruptMessageError, KafkaStorageError, WireError
from dlogd.storage.log.log_reader import LogReader, Read
from tests.fakes.front import Front, fetch_frame, produce_frame, run_on
from tests.fakes.logs import batch_of


@pytest.mark.parametrize("error", [KafkaStorageError("no"), CorruptMessageError("damaged")])
def test_one_partition_that_cannot_be_located_is_refused_alone_and_soon(
    error: WireError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []
    read, locate = LogReader.read, LogReader.locate

    def read_of(
        self: LogReader, offset: int, max_bytes: int, end_offset: int, *, minimum_one: bool = True
    ) -> Read | None:
        if self._state.topic_partition.topic == "a" and max_bytes:
            return None
        return read(self, offset, max_bytes, end_offset, minimum_one=minimum_one)

    async def locate_in(self: LogReader, offset: int) -> None:
        if self._state.topic_partition.topic == "a":
            searches.append(offset)
            raise error
        await locate(self, offset)

    monkeypatch.setattr(LogReader, "read", read_of)
    monkeypatch.setattr(LogReader, "locate", locate_in)

    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            client = await front.connect()
            for topic in ("a", "b"):
                await client.send(produce_frame(topic, batch_of(b"x")))
                assert (await client.produced())[0][1][0][1] == 0
            await client.send(fetch_frame([("a", 0), ("b", 0)], max_wait_ms=5000))
            found = await client.fetched()
            assert found["a"] == (error.code, b"")
            assert found["b"][0] == 0 and found["b"][1] != b""
            assert len(searches) <= 3

    run_on(asyncio.new_event_loop, scenario())
