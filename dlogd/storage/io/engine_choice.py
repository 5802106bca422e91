"""Choice of the I/O engine by its configured name."""

import asyncio
import errno
import logging

from dlogd.storage.io.aio_engine import EVENTS_MAX, AioEngine
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.io.read_pool import READ_MEMORY_BYTES
from dlogd.storage.io.thread_engine import ThreadEngine

log = logging.getLogger(__name__)

ENGINE_KINDS = ("auto", "aio", "threads")


def open_engine(
    kind: str,
    loop: asyncio.AbstractEventLoop,
    *,
    read_memory_bytes: int = READ_MEMORY_BYTES,
    events: int = EVENTS_MAX,
) -> Engine:
    """Return the engine `kind`; `auto` is AIO where the kernel gives a context, else threads.

    Raises OSError for `aio` without a context, ValueError for an unknown kind.
    """
    if kind not in ENGINE_KINDS:
        raise ValueError(f"Unknown io.engine {kind!r}; one of {', '.join(ENGINE_KINDS)}")
    if kind != "threads":
        try:
            return AioEngine(loop, read_memory_bytes=read_memory_bytes, events=events)
        except OSError as error:
            if kind == "aio":
                raise OSError(error.errno, _refusal(error)) from error
            log.warning("Linux AIO is not available, using threads error=%s", error.strerror)
    return ThreadEngine(loop, read_memory_bytes=read_memory_bytes)


def _refusal(error: OSError) -> str:
    """Say why there is no AIO, and what to do."""
    cure = "raise fs.aio-max-nr, or " if error.errno == errno.EAGAIN else ""
    return f"io.engine: aio: {error.strerror}; {cure}set io.engine: auto"
