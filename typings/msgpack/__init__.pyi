"""The part of msgpack that dlog uses (the package has no types of its own)."""

from collections.abc import Iterator
from typing import Any

class UnpackException(Exception): ...  # noqa: N818

def packb(o: Any, *, use_bin_type: bool = ...) -> bytes: ...

class Unpacker:
    def __init__(
        self,
        *,
        raw: bool = ...,
        use_list: bool = ...,
        strict_map_key: bool = ...,
        max_buffer_size: int = ...,
    ) -> None: ...
    def feed(self, data: bytes | bytearray | memoryview) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
