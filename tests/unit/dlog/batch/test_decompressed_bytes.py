"""What consumers hold of compressed batches, decompressed: bounded by batch, and by poll."""

import os
import re
import struct
import subprocess
import sys

import pytest

from dlog.batch.records import Record, encode
from dlog.client.bad_batches import UndecodableBatchError
from dlog.compression import Codec
from dlog.errors import DecompressedTooLargeError
from dlogctl.__main__ import main
from tests.fakes.batches import batch
from tests.fakes.log_consumers import FIRST, consumer, read, run
from tests.fakes.log_nodes import LogNodes
from tests.fakes.served_log import FakeLog
from tests.fakes.threaded_nodes import Nodes
from tests.fakes.threaded_nodes import nodes as nodes

MIB = 1 << 20
POLL_BYTES = 32 * MIB
CHILD = """
import re, sys
from dlogctl.__main__ import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    # Not ru_maxrss: that begins with what the process had that forked this one.
    print(code, re.search(r"VmHWM:\\s+([0-9]+) kB", status.read())[1], file=sys.stderr)
"""


def fill(log: FakeLog, batch_count: int, record_count: int, record_bytes: int) -> None:
    """Write batches that are small on the wire and large when they are decompressed."""
    log.batches.clear()
    log.end = 0
    records = [Record(None, bytes(record_bytes), (), 1)] * record_count
    data = bytearray(encode(records, codec=Codec.ZSTD))
    for _ in range(batch_count):
        struct.pack_into(">q", data, 0, log.end)  # the CRC does not cover it
        log.append(bytes(data))


def test_a_poll_takes_no_more_than_its_bound_and_one_batch() -> None:
    async def work(servers: LogNodes) -> None:
        for log in servers.logs:
            fill(log, 12, 10, MIB)
        async with consumer(servers) as reader:
            found: list[tuple[int, int]] = []
            while len(found) < 240:
                records = await reader.poll()
                size = sum(len(each.value or b"") for each in records)
                assert size < POLL_BYTES + 20 * MIB
                found += [(each.partition, each.offset) for each in records]
                del records
            assert sorted(found) == [(key, each) for key in (0, 1) for each in range(120)]

    run(work, partitions=2)


def test_small_polls_do_not_keep_a_large_batch_of_each_partition() -> None:
    async def work(servers: LogNodes) -> None:
        for log in servers.logs:
            fill(log, 2, 10, MIB)
        async with consumer(servers) as reader:
            cursors = list(reader._reading.fetcher.cursors.values())
            most = count = 0
            while count < 160:
                count += len(await reader.poll(1))
                most = max(most, sum(cursor.kept_bytes for cursor in cursors))
            assert 10 * MIB < most <= POLL_BYTES

    run(work, partitions=8)


def test_a_batch_above_the_bound_is_refused_with_its_place_and_the_cure() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        for codec in (Codec.ZSTD, Codec.GZIP, Codec.LZ4, Codec.SNAPPY):
            records = [Record(None, bytes(MIB), (), 1)]
            log.append(bytes(encode(records, base_offset=log.end, codec=codec)))
        log.append(batch(log.end))
        async with consumer(servers, max_decompressed_batch_bytes=MIB) as reader:
            assert len(await read(reader, 9)) == 9
            for offset in range(9, 13):
                with pytest.raises(UndecodableBatchError) as caught:
                    while True:
                        assert await reader.poll() == []
                assert isinstance(caught.value.__cause__, DecompressedTooLargeError)
                text = str(caught.value)
                assert text.startswith(f"t-0: cannot decode the batch at offset {offset}: ")
                assert "a larger max_decompressed_batch_bytes reads the batch" in text
                await reader.seek(FIRST, offset + 1)
            assert len(await read(reader, 3)) == 3
        async with consumer(servers, max_decompressed_batch_bytes=2 * MIB) as reader:
            assert len(await read(reader, 16)) == 16
        with pytest.raises(ValueError, match="decompressed_batch_bytes_max is at least 1"):
            consumer(servers, max_decompressed_batch_bytes=0)

    run(work)


def test_the_command_says_the_same_and_has_the_option(
    nodes: Nodes, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_BOOTSTRAP", ",".join(map(str, nodes.servers.bootstrap)))
    monkeypatch.setenv("XDG_CONFIG_HOME", "/no/contexts/here")
    fill(nodes.servers.logs[0], 1, 1, MIB)
    line = ["--timeout", "20", "consume", "t", "-p", "0", "--max-decompressed-batch"]
    assert main([*line, "1MiB"]) == 1
    out, err = capsysbinary.readouterr()
    assert out == b""
    assert b"Take it with a larger --max-decompressed-batch, or go on behind the batch" in err
    assert main([*line, "2MiB"]) == 0
    assert len(capsysbinary.readouterr().out) == MIB + 1
    assert main([*line, "0"]) == 64


@pytest.mark.parametrize("record_count", [1, 20])
def test_a_command_takes_little_memory_for_much_in_small_batches(
    nodes: Nodes, record_count: int
) -> None:
    """500 MiB in 25 batches of 2 kB each."""
    fill(nodes.servers.logs[0], 25, record_count, 20 * MIB // record_count)
    line = ["consume", "t", "-p", "0", "--timeout", "10"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *line],
        env={**os.environ, "DLOG_BOOTSTRAP": ",".join(map(str, nodes.servers.bootstrap))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    found = re.fullmatch(rb"0 (\d+)\n", done.stderr)
    assert found is not None, done.stderr
    assert int(found[1]) < 200 * 1024
