"""A task's range against fake nodes: gaps, ends without records, topics made anew, readers kept."""

import asyncio
import struct
import threading
import time

import pytest

from dlog.batch.header import decode_header
from dlog.batch.records import Record, encode
from dlog.checksum import crc32c
from dlog.compression import Codec
from dlog.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    TopicAuthorizationFailedError,
)
from dlog.offset_specs import Isolation
from dlog.spark.errors import DataLossError, SparkSourceError
from dlog.spark.reading import task
from dlog.spark.reading.ranges import OffsetRange
from dlog.spark.settings import ClientSettings, TlsSettings
from dlog.wire.apis import ApiKey
from tests.fakes.bad_batches import miscounted, no_gzip
from tests.fakes.batches import ABORT, COMMIT, batch, damaged, marker
from tests.fakes.log_nodes import LogNodes
from tests.fakes.spark_tasks import OFFSETS, play, read, settings
from tests.fakes.spark_tasks import nothing_left as nothing_left


def fetch_count(servers: LogNodes) -> int:
    """Return how many fetches were answered."""
    return len(servers.requests)


def test_exactly_the_range() -> None:
    async def work(servers: LogNodes) -> None:
        assert await read(servers, 0, 9) == list(range(9))
        assert await read(servers, 2, 7) == list(range(2, 7))
        assert await read(servers, 5, 5) == []
        assert await read(servers, 8, 9, partition=1) == [8]

    play(work, nodes=2)


def test_nothing_is_fetched_behind_the_end() -> None:
    async def work(servers: LogNodes) -> None:
        size = len(batch(0))
        assert await read(servers, 0, 7, partition_bytes_max=size) == list(range(7))
        assert max(each.topics[0][1][0][2] for each in servers.requests) == 6
        assert fetch_count(servers) == 3

    play(work, count=9)


def test_a_small_range_asks_for_little() -> None:
    async def work(servers: LogNodes) -> None:
        def sizes() -> list[int]:
            return [each.topics[0][1][0][5] for each in servers.requests]

        assert await read(servers, 0, 3) == [0, 1, 2]
        assert sizes() == [64 * 1024 + 3 * 4096 * 5 // 4]
        # From now on it knows how large they are.
        assert await read(servers, 0, 2_000) == list(range(2_000))
        record_bytes = sum(len(data) for *_, data in servers.logs[0].batches) / 2_100
        assert sizes()[1] == pytest.approx(64 * 1024 + 2_000 * record_bytes * 1.25, rel=0.05)
        assert len(sizes()) == 2
        # Never more than it may.
        assert await read(servers, 0, 2_000, partition_bytes_max=1_000) == list(range(2_000))
        assert max(sizes()[2:]) == 1_000

    play(work, count=700)


def test_connections_and_threads_are_kept() -> None:
    async def work(servers: LogNodes) -> None:
        for _ in range(4):
            assert await read(servers, 0, 9) == list(range(9))
        assert servers.seen.count(ApiKey.API_VERSIONS) == 1
        assert servers.seen.count(ApiKey.METADATA) == 1
        names = [each.name for each in threading.enumerate()]
        assert names.count("dlog-spark-reader") == 1
        # Another way to the cluster is another reader.
        assert await read(servers, 0, 9, client_id="other") == list(range(9))
        assert servers.seen.count(ApiKey.API_VERSIONS) == 2

    play(work)


def test_a_generator_that_is_left_gives_its_reader_back() -> None:
    async def work(servers: LogNodes) -> None:
        given = settings(servers, partition_bytes_max=len(batch(0)))

        def some() -> None:
            wanted = OffsetRange(topic="t", partition=0, start_offset=0, end_offset=9)
            first = task.read_range(given, wanted, OFFSETS, fail_on_data_loss=True)
            second = task.read_range(given, wanted, OFFSETS, fail_on_data_loss=True)
            assert next(first).column("offset").to_pylist() == [0, 1, 2]
            # Two at the same time do not disturb each other.
            assert [n for each in second for n in each.column("offset").to_pylist()] == [*range(9)]
            first.close()  # type: ignore[attr-defined]

        await asyncio.to_thread(some)
        assert len(task._idle) == 2
        assert await read(servers, 3, 9, partition_bytes_max=len(batch(0))) == list(range(3, 9))
        assert len(task._idle) == 2

    play(work)


# Offsets without records


def test_control_records_are_no_rows_and_may_be_the_end() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        log.append(batch(9, producer_id=5, transactional=True))
        log.append(marker(12, 5, COMMIT))
        assert await read(servers, 6, 13) == list(range(6, 12))
        assert await read(servers, 12, 13) == []

    play(work)


def test_what_was_aborted_is_left_out_when_asked_for() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        log.append(batch(9, producer_id=5, transactional=True))
        log.append(marker(12, 5, ABORT))
        log.aborted = [(5, 9)]
        both = {
            isolation: await read(servers, 6, 13, isolation=isolation) for isolation in Isolation
        }
        assert both[Isolation.READ_UNCOMMITTED] == list(range(6, 12))
        assert both[Isolation.READ_COMMITTED] == [6, 7, 8]

    play(work)


def test_a_transaction_that_stays_open_ends_at_the_deadline() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].last_stable = 6
        began = time.monotonic()
        with pytest.raises(SparkSourceError, match=r"DLOG_READ_TIMEOUT.* from offset 6 within 0.5"):
            await read(servers, 0, 9, isolation=Isolation.READ_COMMITTED, deadline_s=0.5)
        assert 0.5 <= time.monotonic() - began < 15

    play(work)


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("fail", [True, False])
def test_offsets_without_a_record_are_no_loss(policy: str, fail: bool) -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        servers.cleanup_policy = policy
        log.append(batch(12))
        log.append(batch(21))
        log.append(batch(30))
        there = [*range(9), 12, 13, 14, 21, 22, 23, 30, 31, 32]
        assert await read(servers, 0, 33, fail=fail) == there
        assert await read(servers, 10, 20, fail=fail) == [12, 13, 14]

    play(work)


def test_the_last_offsets_may_have_been_compacted_away() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].end = 20
        assert await read(servers, 0, 20) == list(range(9))
        assert await read(servers, 12, 15) == []

    play(work)


# Topics made anew


def test_a_topic_of_another_id_is_told_as_the_planner_tells_it() -> None:
    async def work(servers: LogNodes) -> None:
        first = servers.topic_id
        servers.recreate()
        servers.logs[0].append(batch(0))
        with pytest.raises(DataLossError, match=r"t-0 \[1, 3\).* deleted and created") as caught:
            await read(servers, 1, 3, topic_id=first)
        assert caught.value.error_class == "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
        assert await read(servers, 1, 3, topic_id=first, fail=False) == []
        assert await read(servers, 1, 3, topic_id=servers.topic_id) == [1, 2]

    play(work)


def test_a_topic_that_is_made_anew_while_it_is_read() -> None:
    async def work(servers: LogNodes) -> None:
        first, loop = servers.topic_id, asyncio.get_running_loop()
        given = settings(servers, partition_bytes_max=len(batch(0)))
        wanted = OffsetRange(topic="t", partition=0, start_offset=0, end_offset=90, topic_id=first)

        def run() -> list[int]:
            found: list[int] = []
            for each in task.read_range(given, wanted, OFFSETS, fail_on_data_loss=True):
                found += each.column("offset").to_pylist()
                loop.call_soon_threadsafe(servers.recreate)
            return found

        with pytest.raises(DataLossError, match=r"\[\d+, 90\).* deleted and created") as caught:
            await asyncio.to_thread(run)
        assert caught.value.error_class == "KAFKA_DATA_LOSS.PARTITIONS_DELETED"

    play(work, count=30)


# Nodes


def test_a_leader_that_moves_is_followed() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].errors = [NotLeaderOrFollowerError] * 3
        assert await read(servers, 0, 9) == list(range(9))
        servers.logs[0].leader, servers.logs[0].leader_epoch = 1, 5
        assert await read(servers, 0, 9) == list(range(9))
        servers.stop(1)
        servers.logs[0].leader, servers.logs[0].leader_epoch = 0, 6
        assert await read(servers, 0, 9) == list(range(9))

    play(work, nodes=2)


def test_a_leader_that_names_a_follower_says_nothing_of_the_end() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        # The leader is asked twice, and names the same one again.
        log.follower, log.follower_errors = 1, [FencedLeaderEpochError]
        assert await read(servers, 0, 9, rack="a") == list(range(9))
        assert servers.asked_nodes == [0, 1, 0, 1]

    play(work, nodes=2)


def test_damage_on_the_way_is_mended_and_on_the_disk_is_told() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        log.damaged_reads = 1
        assert await read(servers, 0, 9) == list(range(9))
        first, after, data = log.batches[1]
        log.batches[1] = (first, after, damaged(data))
        assert decode_header(data).base_offset == 3
        with pytest.raises(SparkSourceError, match=r"DLOG_READ_FAILED.*t-0 \[0, 9\).*CRC"):
            await read(servers, 0, 9)
        assert task._idle == []  # what failed is not used again

    play(work)


def test_what_a_producer_wrote_that_is_no_record_is_told_with_the_range() -> None:
    async def work(servers: LogNodes) -> None:
        data = bytearray(batch(9))
        data[61] = 0xFF  # the length of the first record
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        servers.logs[0].append(bytes(data))
        assert await read(servers, 0, 9) == list(range(9))
        with pytest.raises(SparkSourceError, match=r"READ_FAILED.*t-0 \[3, 12\).*offset 9.*delete"):
            await read(servers, 3, 12)

    play(work)


def test_what_is_before_a_bad_batch_is_yielded_and_the_way_on_is_told() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        log.append(no_gzip(9, 2))
        log.append(miscounted(11, 2, said=3))
        log.append(batch(14))
        for start, last, places in ((0, 9, ("9", "11")), (11, 11, ("11", "14"))):
            found: list[int] = []
            says = f"endingOffsets {places[0]}, then startingOffsets {places[1]}\\)"
            with pytest.raises(SparkSourceError, match=says):
                await read(servers, start, 17, found=found)
            assert found == list(range(start, last))
        assert await read(servers, 14, 17) == [14, 15, 16]

    play(work)


def test_a_batch_that_decompresses_to_too_much_is_refused_with_the_option() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        log.append(bytes(encode([Record(None, bytes(5_000))], base_offset=9, codec=Codec.ZSTD)))
        says = r"offset 9: ZSTD: more than 4000 .* Raise maxDecompressedBatchBytes,.*Offsets 10\)"
        with pytest.raises(SparkSourceError, match=says):
            await read(servers, 0, 10, decompressed_batch_bytes_max=4_000)
        assert await read(servers, 0, 10) == list(range(10))

    play(work)


def test_what_does_not_pass_is_told_with_the_range() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].errors = [TopicAuthorizationFailedError]
        says = r"DLOG_READ_FAILED.*t-0 \[2, 9\).*TopicAuthorizationFailed.*dlogctl status"
        with pytest.raises(SparkSourceError, match=says):
            await read(servers, 2, 9)

    play(work)


def test_nobody_answers() -> None:
    async def work(servers: LogNodes) -> None:
        servers.stop(0)
        said = r"DLOG_CLUSTER_UNREACHABLE.*t-0 \[0, 9\).*advertise"
        with pytest.raises(SparkSourceError, match=said):
            await read(servers, 0, 9, deadline_s=0.4)

    play(work)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"tls": TlsSettings(ca_path="/no/such/file.pem")},
            r"DLOG_TLS_FILES. dlog.tls.ca \(/no/such/file.pem\) .* No such file",
        ),
        ({"bootstrap": "nonsense"}, r"DLOG_READ_FAILED.*t-0 \[0, 9\).*nonsense"),
    ],
)
def test_settings_that_lead_nowhere(changes: dict[str, object], says: str) -> None:
    given = ClientSettings(**{"bootstrap": "127.0.0.1:1", **changes})  # type: ignore[arg-type]
    wanted = OffsetRange(topic="t", partition=0, start_offset=0, end_offset=9)
    with pytest.raises(SparkSourceError, match=says):
        next(task.read_range(given, wanted, OFFSETS, fail_on_data_loss=True))
