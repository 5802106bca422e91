"""The four codecs of record batches, each as Kafka's clients write it.

gzip is RFC 1952, lz4 the frame format, zstd plain frames, snappy either raw or in the framing of
snappy-java ("xerial"): a header, then blocks, each a length (int32) and raw snappy data. Java and
the Python clients write xerial, librdkafka raw; everybody reads both. The broker never calls this
for what passes through it; clients and tools do. `cramjam` does the work except for gzip; without
it pyarrow does (`dlog.compression_arrow`), where there is one.

Decompression is bounded: no more than the caller's `size_max` is ever produced, and memory grows
with what comes out, not with what a length field of the input claims. Time is linear in input and
output: an input of many tiny parts (gzip members, snappy blocks) is refused.
"""

import enum
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator

from dlog import compression_arrow
from dlog.checksum import Buffer
from dlog.errors import CorruptMessageError, DecompressedTooLargeError

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
_GZIP_INPUT_BYTES = 64 * 1024  # what is given to zlib at once: it copies what it does not take
_GZIP_OUTPUT_BYTES = 1 << 20  # what zlib makes at once: 64 KiB may become 64 MiB
GZIP_MEMBERS_MAX = 1_000
SMALL_BLOCKS_MAX = 1_000
"""Blocks of xerial snappy below `_SMALL_BLOCK_BYTES`; writers make blocks of 32 KiB."""
_SMALL_BLOCK_BYTES = 1024
_FIRST_GUESS_BYTES_MIN = 64 * 1024
_FIRST_GUESS_RATIO = 4
_COPIED_BYTES_MAX = 1 << 20
"""More stays in the mapping that it came in: a copy would hold up all threads."""
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


def decompress(codec: Codec, data: Buffer, size_max: int) -> Buffer:
    """Decompress `data` to at most `size_max` bytes; return them in memory of their own.

    Raises CorruptMessageError when the data is damaged, DecompressedTooLargeError when it is larger
    than that, and UnsupportedCompressionTypeError where the codec is not installed.
    """
    if codec is Codec.NONE:
        if memoryview(data).nbytes > size_max:
            raise DecompressedTooLargeError(f"more than {size_max} bytes")
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
    return _decompress_frames(codec, decompress_into, data, size_max)


def _decompress_gzip(data: Buffer, size_max: int) -> bytearray:
    """Decompress one gzip member, or several in a row."""
    view = memoryview(data).cast("B")
    output = bytearray()
    position = member_count = 0
    while True:
        member_count += 1
        if member_count > GZIP_MEMBERS_MAX:
            raise CorruptMessageError(f"gzip: more than {GZIP_MEMBERS_MAX} members")
        position = _inflate_member(view, position, output, size_max)
        if position >= len(view):
            return output


def _inflate_member(view: memoryview, position: int, output: bytearray, size_max: int) -> int:
    """Append what the member at `position` holds; return where the member ends."""
    member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    while True:
        part = view[position : position + _GZIP_INPUT_BYTES]
        # One byte more than allowed tells "just fits" from "too much".
        room = min(size_max - len(output) + 1, _GZIP_OUTPUT_BYTES)
        try:
            piece = member.decompress(part, room)
        except zlib.error as error:
            raise CorruptMessageError(f"gzip: {error}") from None
        output += piece
        if len(output) > size_max:
            raise DecompressedTooLargeError(f"gzip: more than {size_max} bytes")
        # At the end of a member zlib gives what is left in both.
        position += len(part) - len(member.unused_data if member.eof else member.unconsumed_tail)
        if member.eof:
            return position
        if position >= len(view) and len(piece) < room:  # else zlib may hold more
            raise CorruptMessageError("gzip: data ends too early")


def _decompress_frames(
    codec: Codec, decompress_into: Callable[..., int], data: Buffer, size_max: int
) -> Buffer:
    """Decompress into a buffer of a first guess; if that is too small, into one of `size_max`.

    The second one is anonymous memory, which is taken page by page as bytes come out.
    """
    guess = max(_FIRST_GUESS_BYTES_MIN, memoryview(data).nbytes * _FIRST_GUESS_RATIO)
    if guess < size_max:
        output = bytearray(guess)
        size = _fill(codec, decompress_into, data, output)
        if size is not None:
            return bytes(memoryview(output)[:size])
        del output
    whole = memoryview(mmap.mmap(-1, max(1, size_max)))[:size_max]
    size = _fill(codec, decompress_into, data, whole)
    if size is None:
        raise DecompressedTooLargeError(f"{codec.name}: more than {size_max} bytes")
    return bytes(whole[:size]) if size <= _COPIED_BYTES_MAX else whole[:size]


def _fill(
    codec: Codec, decompress_into: Callable[..., int], data: Buffer, output: Buffer
) -> int | None:
    """Decompress into `output`; return how many bytes came, None if there are more than fit."""
    try:
        return decompress_into(data, output)
    except cramjam.DecompressionError as error:
        # The text is all that tells a full buffer from damaged data.
        if str(error) == _BUFFER_FULL:
            return None
        raise CorruptMessageError(f"{codec.name}: {error}") from None


def _compress_xerial(view: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = _compress_block(view[start : start + _XERIAL_BLOCK_BYTES])
        pieces.append(_LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(view: memoryview, size_max: int) -> bytearray:
    is_xerial = bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC
    blocks: list[tuple[memoryview, int]] = []
    total = small_count = 0
    for block in _xerial_blocks(view) if is_xerial else (view,):
        size = _block_size(block, size_max - total)
        blocks.append((block, size))
        total += size
        small_count += size < _SMALL_BLOCK_BYTES
        if small_count > SMALL_BLOCKS_MAX:
            raise CorruptMessageError(f"snappy: more than {SMALL_BLOCKS_MAX} tiny blocks")
    output = bytearray(total)
    place = memoryview(output)
    for block, size in blocks:
        _decompress_block(block, place[:size])
        place = place[size:]
    return output


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield the raw blocks behind the header of snappy-java."""
    position = len(_XERIAL_HEADER)
    while position < len(view):
        start = position + _LENGTH.size
        if start > len(view):
            raise CorruptMessageError("snappy: data ends too early")
        (length,) = _LENGTH.unpack_from(view, position)
        position = start + length
        if length < 0 or position > len(view):
            raise CorruptMessageError("snappy: a block is cut")
        yield view[start:position]


def _compress_block(block: memoryview) -> bytes:
    if not IS_NATIVE:
        return compression_arrow.compress_snappy(block)
    return bytes(cramjam.snappy.compress_raw(block))


def _block_size(block: memoryview, size_max: int) -> int:
    """Return how many bytes a raw block holds, from the varint at its start, if it can.

    A lie is found out before memory is taken, because no snappy element makes more than 64 bytes
    out of 3.
    """
    if IS_NATIVE:
        try:
            size = int(cramjam.snappy.decompress_raw_len(block))
        except cramjam.DecompressionError as error:
            raise CorruptMessageError(f"snappy: {error}") from None
    else:
        size = compression_arrow.snappy_size(block)
    if size > 32 * len(block):
        raise CorruptMessageError(f"snappy: {size} bytes from {len(block)}")
    if size > size_max:
        raise DecompressedTooLargeError(f"snappy: {size} bytes where {size_max} are taken")
    return size


def _decompress_block(block: memoryview, output: memoryview) -> None:
    """Decompress a raw block into `output`, which has the size that the block says."""
    if not IS_NATIVE:
        output[:] = compression_arrow.decompress_snappy(block, len(output))
        return
    try:
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CorruptMessageError(f"snappy: {error}") from None
    if written != len(output):
        raise CorruptMessageError("snappy: a block is shorter than it says")
