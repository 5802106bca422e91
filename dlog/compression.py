"""The four codecs of record batches, each as Kafka's clients write it.

gzip is RFC 1952, lz4 the frame format, zstd plain frames, snappy either raw or in the framing of
snappy-java ("xerial"): a header, then blocks, each a length (int32) and raw snappy data. Java and
the Python clients write xerial, librdkafka raw; everybody reads both. The broker never calls this
for what passes through it; clients and tools do. `cramjam` does the work except for gzip; without
it pyarrow does (`dlog.compression_arrow`), where there is one.

Decompression is bounded: no more than the caller's `size_max` is ever produced, and memory grows
with what comes out, not with what a length field of the input claims.
"""

import enum
import struct
import zlib
from collections.abc import Callable

from dlog import compression_arrow
from dlog.checksum import Buffer
from dlog.errors import CorruptMessageError

try:
    import cramjam

    IS_NATIVE = True
except ImportError:  # as on a Spark executor
    IS_NATIVE = False

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest compatible version
_XERIAL_BLOCK_BYTES = 32 * 1024
_LENGTH = struct.Struct(">i")
_ZSTD_LEVEL = 3
_GZIP_WINDOW_BITS = 31  # the largest window, in gzip's own wrapping
_FIRST_GUESS_BYTES_MIN = 64 * 1024
_FIRST_GUESS_RATIO = 4
_GROWTH = 4
_BUFFER_FULL = "failed to write whole buffer"


class Codec(enum.IntEnum):
    """Compression of a batch: the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress `data`; raise UnsupportedCompressionTypeError where the codec is not installed."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        zipper = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
        return zipper.compress(data) + zipper.flush()
    if codec is Codec.SNAPPY:
        return _compress_xerial(memoryview(data))
    if not IS_NATIVE:
        is_lz4 = codec is Codec.LZ4
        by_arrow = compression_arrow.compress_lz4 if is_lz4 else compression_arrow.compress_zstd
        return by_arrow(data)
    if codec is Codec.LZ4:
        # Java reads independent blocks only. The batch has a CRC of its own.
        compressor = cramjam.lz4.Compressor(block_linked=False, content_checksum=False)
        compressor.compress(data if isinstance(data, bytes) else bytes(data))
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(codec: Codec, data: Buffer, size_max: int) -> bytes:
    """Decompress `data` to at most `size_max` bytes.

    Raises CorruptMessageError when the data is damaged or larger than that, and
    UnsupportedCompressionTypeError where the codec is not installed.
    """
    if codec is Codec.NONE:
        if memoryview(data).nbytes > size_max:
            raise CorruptMessageError(f"more than {size_max} bytes")
        return bytes(data)
    if codec is Codec.GZIP:
        return _decompress_gzip(data, size_max)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), size_max)
    if not IS_NATIVE:
        return compression_arrow.decompress_stream(codec.name.lower(), data, size_max)
    decompress_into: Callable[..., int] = (
        cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
    )
    return _decompress_growing(codec, decompress_into, data, size_max)


def _decompress_gzip(data: Buffer, size_max: int) -> bytes:
    """Decompress one gzip member, or several in a row."""
    pieces: list[bytes] = []
    left = size_max
    rest: Buffer = data
    while True:
        member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        try:
            # One byte more than allowed tells "just fits" from "too much".
            piece = member.decompress(rest, left + 1)
        except zlib.error as error:
            raise CorruptMessageError(f"gzip: {error}") from None
        left -= len(piece)
        if left < 0:
            raise CorruptMessageError(f"gzip: more than {size_max} bytes")
        if not member.eof:
            raise CorruptMessageError("gzip: data ends too early")
        pieces.append(piece)
        rest = member.unused_data
        if not rest:
            return b"".join(pieces)


def _decompress_growing(
    codec: Codec, decompress_into: Callable[..., int], data: Buffer, size_max: int
) -> bytes:
    """Decompress into a buffer that grows until the data fits or `size_max` is reached."""
    capacity = max(_FIRST_GUESS_BYTES_MIN, memoryview(data).nbytes * _FIRST_GUESS_RATIO)
    while True:
        capacity = min(capacity, size_max)
        output = bytearray(capacity)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            # The text is all that tells a full buffer from damaged data.
            if str(error) != _BUFFER_FULL or capacity == size_max:
                raise CorruptMessageError(f"{codec.name}: {error}") from None
            capacity *= _GROWTH
        else:
            return bytes(memoryview(output)[:size])


def _compress_xerial(view: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = _compress_block(view[start : start + _XERIAL_BLOCK_BYTES])
        pieces.append(_LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(view: memoryview, size_max: int) -> bytes:
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _decompress_block(view, size_max)
    position = len(_XERIAL_HEADER)
    pieces: list[bytes] = []
    left = size_max
    while position < len(view):
        start = position + _LENGTH.size
        if start > len(view):
            raise CorruptMessageError("snappy: data ends too early")
        (length,) = _LENGTH.unpack_from(view, position)
        position = start + length
        if length < 0 or position > len(view):
            raise CorruptMessageError("snappy: a block is cut")
        piece = _decompress_block(view[start:position], left)
        left -= len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _compress_block(block: memoryview) -> bytes:
    if not IS_NATIVE:
        return compression_arrow.compress_snappy(block)
    return bytes(cramjam.snappy.compress_raw(block))


def _decompress_block(block: memoryview, size_max: int) -> bytes:
    if not IS_NATIVE:
        size = _believed(compression_arrow.snappy_size(block), block, size_max)
        return compression_arrow.decompress_snappy(block, size)
    try:
        size = _believed(cramjam.snappy.decompress_raw_len(block), block, size_max)
        output = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CorruptMessageError(f"snappy: {error}") from None
    if written != size:
        raise CorruptMessageError("snappy: a block is shorter than it says")
    return bytes(output)


def _believed(size: int, block: memoryview, size_max: int) -> int:
    """Return a block's size, from the varint at its start, if it can be.

    A lie is found out before memory is taken, because no snappy element makes more than 64 bytes
    out of 3.
    """
    if size > size_max or size > 32 * len(block):
        raise CorruptMessageError(f"snappy: {size} bytes from {len(block)}")
    return size
