"""Rows of fixed size, read from a buffer that other code may hold."""

import struct
from collections.abc import Iterator
from typing import Any

from dlog.checksum import Buffer


def unpack_rows(layout: struct.Struct, buffer: Buffer) -> Iterator[tuple[Any, ...]]:
    """Return the rows of `layout` that fill `buffer`; raises struct.error when they do not.

    Of a copy: an iterator over a memoryview that is a local of a frame in an exception's traceback
    makes CPython before 3.12.7 read freed memory when the garbage collector meets both in a cycle
    (https://github.com/python/cpython/issues/77894).
    """
    return layout.iter_unpack(bytes(buffer))
