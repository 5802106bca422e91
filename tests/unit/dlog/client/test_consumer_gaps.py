"""The consumer and records that are no longer there: gaps told of, raised, passed over."""

import logging
from typing import Any

import pytest

from dlog.client.gaps import Gap, GapError, GapReason
from dlog.errors import NotLeaderOrFollowerError, UnknownTopicIdError
from dlog.wire.apis import ApiKey
from tests.fakes.batches import batch
from tests.fakes.log_consumers import FIRST, SECOND, consumer, offsets, read, run
from tests.fakes.log_nodes import LogNodes


def gap(reason: GapReason, offset: int, resume_offset: int) -> Gap:
    """Return a gap of the first partition."""
    return Gap(topic_partition=FIRST, reason=reason, offset=offset, resume_offset=resume_offset)


class Case:
    """A reader that has read to 9, and something that happens to the log then."""

    def __init__(self, reason: GapReason, offset: int, resume_offset: int, expected: list[int]):
        self.gap = gap(reason, offset, resume_offset)
        self.expected = expected

    def happen(self, servers: LogNodes) -> None:
        """Do it."""
        log = servers.logs[0]
        if self.gap.reason is GapReason.RETENTION:
            log.append(batch(9))
            log.append(batch(12))
            log.trim(12)
        elif self.gap.reason is GapReason.TRUNCATED:
            log.cut(6)
            log.leader_epoch += 1
        elif self.gap.reason is GapReason.MISSING:
            log.append(batch(12))
        else:
            servers.recreate()
            log.append(batch(0))
        servers.notify()


CASES = [
    Case(GapReason.RETENTION, 9, 12, [12, 13, 14]),
    Case(GapReason.TRUNCATED, 9, 6, []),
    Case(GapReason.MISSING, 9, 12, [12, 13, 14]),
    Case(GapReason.RECREATED, 9, 0, [0, 1, 2]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.gap.reason.value)
def test_a_gap_is_told_to_who_asked_and_reading_goes_on(case: Case) -> None:
    async def work(servers: LogNodes) -> None:
        told: list[Gap] = []
        async with consumer(servers, on_gap=told.append) as reader:
            await read(reader, 9)
            case.happen(servers)
            records = []
            while not told or len(records) < len(case.expected):
                records += await reader.poll(timeout_ms=20)
            assert told == [case.gap]
            assert offsets(records) == case.expected
            assert reader.position(FIRST) == case.gap.resume_offset + len(records)
            assert reader.counters.gaps == 1
            servers.logs[0].append(batch(servers.logs[0].end))
            servers.notify()
            assert len(await read(reader, 3)) == 3

    run(work)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.gap.reason.value)
def test_a_gap_is_raised_until_the_reader_says_where_to_go_on(case: Case) -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 9)
            case.happen(servers)
            for _ in range(2):
                with pytest.raises(GapError, match="t-0") as raised:
                    while True:
                        assert await reader.poll(timeout_ms=20) == []
                assert raised.value.gap == case.gap
                assert reader.position(FIRST) == 9
            await reader.seek(FIRST, case.gap.resume_offset)
            assert offsets(await read(reader, len(case.expected))) == case.expected

    run(work)


def test_a_gap_does_not_keep_back_what_others_have() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 18)
            CASES[0].happen(servers)
            with pytest.raises(GapError):
                await reader.poll(timeout_ms=None)
            for end in range(9, 30, 3):
                servers.logs[1].append(batch(end))
                servers.notify()
                found = await read(reader, 3, timeout_ms=None)
                assert offsets(found, 1) == [end, end + 1, end + 2]
            assert reader.position(FIRST) == 9
            # A poll that finds nothing says why; the one partition that is left has nothing.
            with pytest.raises(GapError, match="t-0"):
                await reader.poll(timeout_ms=20)
            reader.pause(SECOND)
            with pytest.raises(GapError, match="t-0"):
                await reader.poll(timeout_ms=None)
            reader.resume(SECOND)
            reader.pause(FIRST)
            assert await reader.poll(timeout_ms=20) == []
            reader.resume(FIRST)
            await reader.seek(FIRST, CASES[0].gap.resume_offset)
            assert offsets(await read(reader, 3)) == CASES[0].expected

    run(work, partitions=2)


def test_the_next_gap_of_a_partition_is_news_again() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            await read(reader, 18)
            for _ in range(2):
                servers.recreate()
                servers.logs[0].append(batch(0))
                told = {0, 1}
                while told:
                    with pytest.raises(GapError) as raised:
                        await reader.poll(timeout_ms=None)
                    told.remove(raised.value.gap.topic_partition.partition)
                    await reader.seek(raised.value.gap.topic_partition, 0)
                assert offsets(await read(reader, 3)) == [0, 1, 2]

    run(work, partitions=2)


def test_what_was_fetched_before_a_gap_is_given_before_it() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            assert offsets(await reader.poll(1)) == [0]
            CASES[0].happen(servers)
            assert offsets(await read(reader, 8)) == list(range(1, 9))
            with pytest.raises(GapError):
                await reader.poll(timeout_ms=None)

    run(work)


def test_an_explicit_start_before_the_log_is_a_gap() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].trim(6)
        async with consumer(servers, start=2) as reader:
            with pytest.raises(GapError) as raised:
                await reader.poll(timeout_ms=None)
            assert raised.value.gap == gap(GapReason.RETENTION, 2, 6)
            assert raised.value.gap.lost_count == 4
        async with consumer(servers, start=20) as reader:
            with pytest.raises(GapError) as raised:
                await reader.poll(timeout_ms=None)
            assert raised.value.gap == gap(GapReason.TRUNCATED, 20, 9)
            assert raised.value.gap.lost_count == 0

    run(work)


@pytest.mark.parametrize(("end", "is_told"), [(6, True), (9, False), (30, False)])
def test_another_history_is_found_by_the_epoch(end: int, is_told: bool) -> None:
    """What was read is in the log no more, though the log has gone beyond it again (KIP-320)."""

    async def work(servers: LogNodes) -> None:
        told: list[Gap] = []
        async with consumer(servers, on_gap=told.append) as reader:
            await read(reader, 9)
            log = servers.logs[0]
            log.diverging = (0, end)
            log.append(batch(9, leader_epoch=1))
            log.append(batch(12, leader_epoch=1))
            servers.notify()
            first = min(end, 9)
            assert offsets(await read(reader, 15 - first)) == list(range(first, 15))
            assert told == ([gap(GapReason.TRUNCATED, 9, end)] if is_told else [])

    run(work)


@pytest.mark.parametrize("how", ["start", "seek"])
def test_who_began_at_the_end_is_told_of_another_history_too(how: str) -> None:
    """It has read nothing yet: what was written in place of what it began behind is new to it."""

    async def work(servers: LogNodes) -> None:
        told: list[Gap] = []
        log = servers.logs[0]
        start = "latest" if how == "start" else 9
        async with consumer(servers, start=start, on_gap=told.append) as reader:
            assert reader.position(FIRST) == 9
            if how == "seek":
                await reader.seek(FIRST, "latest")
            log.diverging = (0, 6)
            log.cut(6)
            for number in (6, 9, 12):
                log.append(batch(number, leader_epoch=1))
            servers.notify()
            assert offsets(await read(reader, 9)) == list(range(6, 15))
            assert told == [gap(GapReason.TRUNCATED, 9, 6)]

    run(work)


def test_a_leader_without_the_epoch_of_what_was_read_is_not_asked_for_ever() -> None:
    """It has no batch of that epoch, and nothing differs: compaction took them all, say."""

    async def work(servers: LogNodes) -> None:
        told: list[Gap] = []
        async with consumer(servers, on_gap=told.append) as reader:
            await read(reader, 9)
            log = servers.logs[0]
            log.diverging, log.foreign_epoch = (0, 9), 0
            log.append(batch(9, leader_epoch=1))
            servers.notify()
            before = servers.seen.count(ApiKey.FETCH)
            assert offsets(await read(reader, 3)) == [9, 10, 11]
            assert servers.seen.count(ApiKey.FETCH) - before < 10
            assert told == []

    run(work)


def test_holes_of_compacted_topics_are_nobodys_business() -> None:
    async def work(servers: LogNodes) -> None:
        servers.cleanup_policy = "compact,delete"
        servers.logs[0].append(batch(20))
        servers.logs[0].append(batch(30))
        async with consumer(servers) as reader:
            expected = [*range(9), 20, 21, 22, 30, 31, 32]
            assert offsets(await read(reader, 15)) == expected
            assert reader.counters.gaps == 0
            assert servers.seen.count(ApiKey.DESCRIBE_CONFIGS) == 1

    run(work)


def test_what_on_gap_raises_comes_out_of_poll() -> None:
    class StopError(Exception):
        pass

    def stop(_gap: Gap) -> None:
        raise StopError

    async def work(servers: LogNodes) -> None:
        servers.logs[0].trim(6)
        async with consumer(servers, start=0, on_gap=stop) as reader:
            for _ in range(2):
                with pytest.raises(StopError):
                    await reader.poll(timeout_ms=None)

    run(work)


def test_gaps_and_retries_leave_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].trim(6)
        async with consumer(servers, start=0, on_gap=lambda _gap: None) as reader:
            await read(reader, 3)

    with caplog.at_level(logging.INFO, "dlog.client"):
        run(work)
    lines = [line for line in caplog.messages if line.startswith("Found a gap")]
    assert lines == ["Found a gap partition=t-0 reason=retention offset=0 resume_offset=6"]


def test_a_leader_of_a_life_that_is_over_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its epoch is greater than any of the topic that was made anew: nobody would be believed."""

    async def work(servers: LogNodes) -> None:
        look = servers._look

        def behind(*request: Any) -> Any:
            """Answer like a node that has not heard of the topic's end, only of its last leader."""
            answers, found = look(*request)
            for _, rows in answers:
                for at, row in enumerate(rows):
                    if row.error_code == UnknownTopicIdError.code:
                        code = NotLeaderOrFollowerError.code
                        rows[at] = row._replace(error_code=code, current_leader=(0, 8))
            return answers, found

        monkeypatch.setattr(servers, "_look", behind)
        async with consumer(servers) as reader:
            await read(reader, 9)
            servers.open_fetches.clear()
            servers.recreate()
            servers.logs[0].append(batch(0))
            await reader._reading.cluster.refresh(["t"])  # by the other node, as for any other call
            servers.open_fetches.set()
            with pytest.raises(GapError) as raised:
                await reader.poll(timeout_ms=None)
            assert raised.value.gap.reason is GapReason.RECREATED
            await reader.seek(raised.value.gap.topic_partition, 0)
            assert offsets(await read(reader, 3)) == [0, 1, 2]
            log = servers.logs[0]
            log.leader, log.leader_epoch = 1, 1
            log.append(batch(3, leader_epoch=1))
            servers.notify()
            assert offsets(await read(reader, 3)) == [3, 4, 5]

    run(work, nodes=2)
