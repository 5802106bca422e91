"""Codecs: round trips, forms that other clients write, bounds, damage."""

import gzip
import random
import struct
import sys
import zlib
from typing import Any

import cramjam
import pytest

from dlog import compression
from dlog.compression import Codec, compress, decompress
from dlog.errors import CorruptMessageError, UnsupportedCompressionTypeError

REAL = [codec for codec in Codec if codec is not Codec.NONE]
DATA = [b"", b"a", b"hello " * 10, bytes(range(256)) * 300, bytes(3_000_000)]


@pytest.fixture(params=["cramjam", "pyarrow"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let each test be done by both libraries."""
    name: str = request.param
    monkeypatch.setattr(compression, "IS_NATIVE", name == "cramjam")
    return name


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", DATA, ids=len)
def test_round_trip(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data) + 10) == data
    assert compress(codec, memoryview(bytearray(data))) == packed


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [100, 70_000, 300_000])
def test_never_more_than_the_bound(codec: Codec, size: int) -> None:
    packed = compress(codec, bytes(size))
    assert decompress(codec, packed, size) == bytes(size)
    with pytest.raises(CorruptMessageError):
        decompress(codec, packed, size - 1)
    with pytest.raises(CorruptMessageError):
        decompress(codec, packed, 1)


@pytest.mark.parametrize("codec", REAL)
def test_cut_data_is_refused(codec: Codec) -> None:
    data = bytes(range(256)) * 400
    packed = compress(codec, data)
    for cut in {0, 1, 5, 17, len(packed) // 2, len(packed) - 1} - {0} | {len(packed) - 3}:
        try:
            found = decompress(codec, packed[:cut], 1 << 20)
        except CorruptMessageError:
            continue
        # Snappy's framing has no end mark: a cut between blocks gives whole blocks.
        assert codec is Codec.SNAPPY
        assert data.startswith(found)


@pytest.mark.parametrize("codec", REAL)
def test_garbage_is_refused(codec: Codec) -> None:
    for garbage in (b"garbage, surely", b"\xff" * 40, bytes(40), b"\xff\xff\xff\xff\x0f"):
        try:
            assert decompress(codec, garbage, 1 << 20) == b""
        except CorruptMessageError:
            pass


def test_snappy_in_the_forms_of_java_and_of_librdkafka() -> None:
    data = bytes(range(256)) * 1000
    packed = compress(Codec.SNAPPY, data)
    assert packed.startswith(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(Codec.SNAPPY, raw, len(data)) == data


def test_snappy_that_claims_more_than_it_can_hold() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + bytes(10)
    with pytest.raises(CorruptMessageError):
        decompress(Codec.SNAPPY, claim, 1 << 40)
    framed = compression.XERIAL_MAGIC + struct.pack(">iii", 1, 1, len(claim)) + claim
    with pytest.raises(CorruptMessageError):
        decompress(Codec.SNAPPY, framed, 1 << 40)
    for block in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x09abc", b"\x00\x00"):
        with pytest.raises(CorruptMessageError):
            decompress(Codec.SNAPPY, packed_header() + block, 1 << 20)


def packed_header() -> bytes:
    """Return snappy-java's header."""
    return compression.XERIAL_MAGIC + struct.pack(">ii", 1, 1)


def test_gzip_of_several_members() -> None:
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    assert decompress(Codec.GZIP, packed, 6) == b"onetwo"
    with pytest.raises(CorruptMessageError):
        decompress(Codec.GZIP, packed, 5)
    with pytest.raises(CorruptMessageError):
        decompress(Codec.GZIP, zlib.compress(b"zlib's own wrapping"), 100)


def test_an_input_of_many_tiny_parts_is_refused() -> None:
    """Each would cost a call for nothing: 1 MB of them cost a second."""
    member = gzip.compress(b"")
    most = compression.GZIP_MEMBERS_MAX
    assert decompress(Codec.GZIP, member * most, 1) == b""
    with pytest.raises(CorruptMessageError, match="more than 1000 members"):
        decompress(Codec.GZIP, member * (most + 1), 1)
    block = bytes(cramjam.snappy.compress_raw(b"x"))
    tiny = struct.pack(">i", len(block)) + block
    most = compression.SMALL_BLOCKS_MAX
    assert decompress(Codec.SNAPPY, packed_header() + tiny * most, most) == b"x" * most
    with pytest.raises(CorruptMessageError, match="more than 1000 tiny blocks"):
        decompress(Codec.SNAPPY, packed_header() + tiny * (most + 1), 1 << 20)
    large = bytes(cramjam.snappy.compress_raw(bytes(2048)))
    many = (struct.pack(">i", len(large)) + large) * (most + 1)
    assert len(decompress(Codec.SNAPPY, packed_header() + many, 1 << 24)) == 2048 * (most + 1)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_no_byte_is_made_again_and_again(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than the first guess is decompressed once more, into a buffer that fits."""
    monkeypatch.setattr(compression, "IS_NATIVE", True)
    sizes: list[int] = []
    fill = compression._fill

    def counting(*arguments: Any) -> int | None:
        sizes.append(len(arguments[-1]))
        return fill(*arguments)

    monkeypatch.setattr(compression, "_fill", counting)
    packed = compress(codec, bytes(30_000_000))
    assert len(decompress(codec, packed, 40_000_000)) == 30_000_000
    *before, last = sizes
    assert last == 40_000_000
    assert sum(before) <= max(1 << 16, 4 * len(packed))


def test_lz4_blocks_do_not_depend_on_each_other() -> None:
    """Java refuses frames that say otherwise (Lz4BlockInputStream)."""
    for size in (10, 100_000, 1_000_000):
        frame = compress(Codec.LZ4, b"0123456789" * (size // 10))
        version, flags = frame[4] >> 6, frame[4]
        assert (version, flags & 0x20) == (1, 0x20)


def test_lz4_is_the_frame_format() -> None:
    assert compress(Codec.LZ4, b"data" * 20).startswith(b"\x04\x22\x4d\x18")


def test_without_any_library_gzip_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "IS_NATIVE", False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert decompress(Codec.GZIP, compress(Codec.GZIP, b"x"), 1) == b"x"
    assert decompress(Codec.NONE, b"x", 1) == b"x"
    for codec in (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        with pytest.raises(UnsupportedCompressionTypeError, match="cramjam, or pyarrow"):
            compress(codec, b"x")
        packed = b"\x01x" if codec is Codec.SNAPPY else b"x"
        with pytest.raises(UnsupportedCompressionTypeError):
            decompress(codec, packed, 1)


@pytest.mark.parametrize("codec", REAL)
def test_each_library_reads_the_other(
    codec: Codec, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = random.Random(4).randbytes(9_000_000)  # no block of it gets smaller
    for data in (*DATA, plain, plain[:4_200_000] + bytes(5_000_000)):
        packed = compress(codec, data)
        monkeypatch.setattr(compression, "IS_NATIVE", library != "cramjam")
        assert decompress(codec, packed, len(data)) == data
        monkeypatch.setattr(compression, "IS_NATIVE", library == "cramjam")


def test_a_ratio_of_ten_thousand_grows_the_buffer_step_by_step() -> None:
    size = 40_000_000
    packed = compress(Codec.ZSTD, bytes(size))
    assert len(packed) * 5_000 < size
    assert len(decompress(Codec.ZSTD, packed, size)) == size
    assert sys.getsizeof(decompress(Codec.ZSTD, compress(Codec.ZSTD, b"x"), size)) < 1000
