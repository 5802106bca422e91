"""What writers make of records decompresses the same in one piece, in parts, and by both libraries.

The reference is the plain way: all of the input at once, all of the output at once.
"""

import gzip
import struct
from collections.abc import Callable

import cramjam
import pyarrow
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlog import compression
from dlog.compression import XERIAL_MAGIC, Codec, decompress
from dlog.errors import CorruptMessageError, DecompressedTooLargeError

PLAIN = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=9),
              st.integers(0, 40_000)),
)  # fmt: skip


def xerial(parts: list[bytes]) -> bytes:
    """Return snappy-java's framing, a block for each part."""
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in parts]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return XERIAL_MAGIC + struct.pack(">ii", 1, 1) + framed


def zstd_without_size(parts: list[bytes]) -> bytes:
    """Return one frame that does not say how much it holds, as streaming writers do."""
    compressor = cramjam.zstd.Compressor()
    for part in parts:
        compressor.compress(part)
    return bytes(compressor.finish())


def zstd_with_size(parts: list[bytes]) -> bytes:
    """Return one frame that says how much it holds."""
    return bytes(pyarrow.Codec("zstd").compress(b"".join(parts), asbytes=True))


def lz4_linked(parts: list[bytes]) -> bytes:
    """Return a frame whose blocks depend on each other, with a checksum."""
    return bytes(cramjam.lz4.compress(b"".join(parts)))


FORMS: dict[str, tuple[Codec, Callable[[list[bytes]], bytes]]] = {
    "gzip": (Codec.GZIP, lambda parts: gzip.compress(b"".join(parts))),
    "gzip members": (Codec.GZIP, lambda parts: b"".join(map(gzip.compress, parts))),
    "xerial": (Codec.SNAPPY, xerial),
    "raw snappy": (Codec.SNAPPY, lambda parts: bytes(cramjam.snappy.compress_raw(b"".join(parts)))),
    "lz4": (Codec.LZ4, lambda parts: compression.compress(Codec.LZ4, b"".join(parts))),
    "linked lz4": (Codec.LZ4, lz4_linked),
    "zstd": (Codec.ZSTD, zstd_without_size),
    "zstd with size": (Codec.ZSTD, zstd_with_size),
    "zstd frames": (Codec.ZSTD, lambda parts: b"".join(zstd_with_size([part]) for part in parts)),
}


@pytest.mark.parametrize("form", FORMS)
@given(st.lists(PLAIN, min_size=1, max_size=5))
@example([bytes(3_000_000), b"", b"x"])
def test_honest_input_comes_back(form: str, parts: list[bytes]) -> None:
    codec, make = FORMS[form]
    plain, packed = b"".join(parts), make(parts)
    for is_native in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compression, "IS_NATIVE", is_native)
            for size_max in (len(plain), len(plain) + 1, 1 << 24):
                assert bytes(decompress(codec, memoryview(packed), size_max)) == plain
            if plain:
                with pytest.raises(DecompressedTooLargeError):
                    decompress(codec, packed, len(plain) - 1)


@pytest.mark.parametrize("form", FORMS)
@given(
    parts=st.lists(PLAIN, min_size=1, max_size=3), place=st.floats(0, 1), octet=st.integers(0, 255)
)
def test_damaged_input_is_refused_or_read_but_never_beyond_the_bound(
    form: str, parts: list[bytes], place: float, octet: int
) -> None:
    codec, make = FORMS[form]
    packed = bytearray(make(parts))
    packed[min(int(place * len(packed)), len(packed) - 1)] = octet
    for is_native in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compression, "IS_NATIVE", is_native)
            try:
                found = decompress(codec, packed, 100_000)
            except CorruptMessageError:
                continue
            assert memoryview(found).nbytes <= 100_000
