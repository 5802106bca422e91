"""Partition logs that are filled, damaged on the disk and opened again, for tests of recovery."""

from dataclasses import replace

import pytest

from dlog.errors import KafkaStorageError
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.storage.io.files import Directory
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.filled_logs import CONFIG
from tests.fakes.logs import LogHost, append_waiting, settle

LOG_0 = file_name(0)


async def fill(plog: PartitionLog, count: int, size: int = 100, epoch: int = 0) -> None:
    """Append and flush batches of one record each."""
    for number in range(count):
        await append_waiting(plog, b"%d" % number + bytes([65 + number % 26]) * size, epoch=epoch)
    await plog.flush()
    await settle()


async def filled(host: LogHost, count: int = 20, size: int = 100) -> int:
    """Open a log, fill it, kill the process; return where the data ends."""
    plog = await host.open()
    await fill(plog, count, size)
    return plog.active.end_position


def overwrite(directory: Directory, name: str, position: int, data: bytes) -> None:
    """Change bytes of a file at rest."""
    file = directory.open(name)
    file.pwrite(data, position)
    file.sync()
    file.close()


def flip(directory: Directory, name: str, position: int) -> None:
    """Flip one bit of a file at rest."""
    file = directory.open(name)
    byte = file.pread(1, position)[0]
    file.close()
    overwrite(directory, name, position, bytes([byte ^ 0x10]))


def content(directory: Directory, name: str = LOG_0) -> bytes:
    """Return all bytes of a file."""
    file = directory.open(name)
    data = file.pread(file.size(), 0)
    file.close()
    return data


async def refused(host: LogHost) -> str:
    """Open the log, which must be refused without a change; return the message."""
    directory = host.machine.boot().open_directory("/data/t-0")
    before = {name: content(directory, name) for name in directory.names()}
    with pytest.raises(KafkaStorageError) as caught:
        await host.open()
    directory = host.machine.boot().open_directory("/data/t-0")
    assert {name: content(directory, name) for name in directory.names()} == before
    return str(caught.value)


def segments_config(policy: FlushPolicy = FlushPolicy.ALWAYS) -> LogConfig:
    return replace(CONFIG, segment_bytes=4096, flush_policy=policy, direct_io=DirectIo.OFF)


async def several_segments(host: LogHost) -> list[int]:
    """Fill some segments; return the base offsets."""
    plog = await host.open()
    await fill(plog, 100)
    for _ in range(50):
        await settle()
    return [segment.base_offset for segment in plog.segments]
