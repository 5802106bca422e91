"""Reads and writes of an engine that are waited for, and aligned memory for them."""

import asyncio
import mmap

from dlogd.storage.io.aio_engine import AioEngine
from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ALIGNMENT, ReadBuffer
from dlogd.storage.io.thread_engine import ThreadEngine

AnyEngine = AioEngine | ThreadEngine


BLOCK = ALIGNMENT


def blocks(count: int, fill: int) -> memoryview:
    """Return page-aligned memory of `count` blocks."""
    memory = memoryview(mmap.mmap(-1, count * BLOCK))
    memory[:] = bytes([fill]) * len(memory)
    return memory


async def write(
    engine: AnyEngine, file: File, position: int, *buffers: memoryview, durable: bool = True
) -> OSError | None:
    """Write buffers one behind the other; return the error, if any."""
    result: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    engine.write(file, position, buffers, durable=durable, done=result.set_result)
    return await result


async def read(engine: AnyEngine, file: File, position: int, length: int) -> "ReadBuffer | OSError":
    """Return what was read, or the error."""
    result: asyncio.Future[ReadBuffer | OSError] = asyncio.get_running_loop().create_future()
    engine.read(file, position, length, result.set_result)
    return await result


async def read_bytes(engine: AnyEngine, file: File, position: int, length: int) -> bytes:
    """Return the bytes that were read, which must succeed."""
    buffer = await read(engine, file, position, length)
    assert not isinstance(buffer, OSError), buffer
    data = bytes(buffer.view)
    buffer.release()
    return data
