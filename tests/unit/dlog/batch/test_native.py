"""The compiled half of the codec and its pure twin: which one is taken, and that both do."""

import os
import subprocess
import sys

import pytest

from dlog.batch import _pure, native
from tests.tidy import sources

ROOT = sources.ROOT
SUITES = ("test_batch_build.py", "test_batch_reading.py", "test_batch_arrow.py")
# From Kafka's UtilsTest.testMurmur2.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
FORCED = "from dlog.batch.native import IS_COMPILED; assert not IS_COMPILED"
NOT_BUILT = "import sys; sys.modules['dlog.batch._speedups'] = None; " + FORCED
LAZY = """
import sys
import dlog.batch.header, dlog.batch.build, dlog.batch.columns, dlog.batch.decoding
import dlog.client.admin, dlog.client.blocking
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"numpy", "pyarrow"}, loaded
"""
ALONE = """
import sys
for name in ("crc32c", "cramjam", "kio", "numpy", "pyarrow"):
    sys.modules[name] = None
from dlog.batch.build import BatchBuilder
from dlog.batch.columns import decode_columns
from dlog.batch.decoding import decode_records
from dlog.compression import Codec
builder = BatchBuilder(Codec.GZIP, 1000)
assert builder.append(b"k", b"v", (), 5)
batch = builder.build()
assert decode_records(batch)[0].value == b"v"
assert decode_columns([batch]).values[0] == b"v"
"""


def run(*arguments: str, pure: bool = False) -> None:
    """Run the interpreter by itself."""
    environment = {**os.environ, "DLOG_PURE": "1" if pure else ""}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_extension_is_taken_where_it_is_built() -> None:
    pytest.importorskip("dlog.batch._speedups", reason="the extension is not built")
    run("-c", "from dlog.batch.native import IS_COMPILED; assert IS_COMPILED")


def test_the_environment_forces_the_pure_form() -> None:
    run("-c", FORCED, pure=True)


def test_an_extension_that_is_not_built_is_done_without() -> None:
    run("-c", NOT_BUILT)


@pytest.mark.parametrize("suite", SUITES)
def test_the_pure_form_passes_the_same_tests(suite: str) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    run("-m", "pytest", *options, str(ROOT / "tests/unit/dlog/batch" / suite), pure=True)


def test_arrow_and_numpy_are_not_imported_before_they_are_needed() -> None:
    run("-c", LAZY)


@pytest.mark.parametrize("pure", [False, True])
def test_without_third_party_packages(pure: bool) -> None:
    run("-c", ALONE, pure=pure)


@pytest.mark.parametrize("key", MURMUR2)
def test_murmur2_is_that_of_kafka(key: bytes) -> None:
    assert native.murmur2(key) == _pure.murmur2(key) == MURMUR2[key]
    assert native.murmur2(bytearray(key)) == MURMUR2[key]
    for murmur2 in (native.murmur2, _pure.murmur2):
        with pytest.raises(TypeError):
            murmur2("text")  # type: ignore[arg-type]
