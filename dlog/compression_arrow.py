"""The codecs by pyarrow: for hosts without `cramjam`, as Spark's executors may be.

The same forms as `dlog.compression` writes and reads, and the same bounds; snappy's framing is
there. Imported when it is needed first: pyarrow is large.
"""

from importlib import import_module
from typing import Any

from dlog.checksum_table import Buffer
from dlog.errors import (
    CorruptMessageError,
    DecompressedTooLargeError,
    UnsupportedCompressionTypeError,
)

# Magic, version 1 with independent blocks (Java reads no others), blocks of up to 4 MiB, and the
# second byte of the XXH32 of these two.
_LZ4_HEADER = bytes.fromhex("04224d18 60 70 73")
_LZ4_BLOCK_BYTES = 4 * 1024 * 1024
_LZ4_IS_PLAIN = 0x8000_0000
_ZSTD_LEVEL = 3
_READ_BYTES = 1024 * 1024


def _codec(name: str, level: int | None = None) -> Any:
    try:
        return import_module("pyarrow").Codec(name, level)
    except (ImportError, ValueError) as error:
        needs = f"{name} needs the package cramjam, or pyarrow"
        raise UnsupportedCompressionTypeError(needs) from error


def compress_zstd(data: Buffer) -> bytes:
    """Return one frame."""
    return bytes(_codec("zstd", _ZSTD_LEVEL).compress(data, asbytes=True))


def compress_lz4(data: Buffer) -> bytes:
    """Return one frame without checksums."""
    codec = _codec("lz4_raw")
    pieces = [_LZ4_HEADER]
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            pieces += [len(block).to_bytes(4, "little"), block]
        else:
            pieces += [(len(plain) | _LZ4_IS_PLAIN).to_bytes(4, "little"), bytes(plain)]
    pieces.append(bytes(4))
    return b"".join(pieces)


def compress_snappy(data: Buffer) -> bytes:
    """Return one raw block."""
    return bytes(_codec("snappy").compress(data, asbytes=True))


def decompress_stream(name: str, data: Buffer, size_max: int) -> bytearray:
    """Return what an `lz4` or `zstd` frame holds; raises CorruptMessageError, as beyond `size_max`.

    No more than `size_max` and one read is ever produced.
    """
    codec = _codec(name)  # raises in our words when there is none
    arrow: Any = import_module("pyarrow")
    output = bytearray()
    try:
        with arrow.CompressedInputStream(arrow.py_buffer(data), codec.name) as stream:
            while piece := stream.read(min(_READ_BYTES, size_max - len(output) + 1)):
                output += piece
                if len(output) > size_max:
                    raise DecompressedTooLargeError(f"{name}: more than {size_max} bytes")
    except (OSError, ValueError) as error:
        raise CorruptMessageError(f"{name}: {error}") from None
    return output


def snappy_size(block: Buffer) -> int:
    """Return how many bytes a raw block says it holds."""
    size = 0
    for place, octet in enumerate(memoryview(block).cast("B")[:5]):
        size |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return size
    raise CorruptMessageError("snappy: no length")


def decompress_snappy(block: Buffer, size: int) -> bytes:
    """Return what a raw block holds, `size` bytes as it says."""
    try:
        plain = _codec("snappy").decompress(block, size, asbytes=True)
    except (OSError, ValueError) as error:
        raise CorruptMessageError(f"snappy: {error}") from None
    return bytes(plain)
