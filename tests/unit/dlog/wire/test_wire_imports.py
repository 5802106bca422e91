"""What a Spark executor needs imports without any third-party package, and works."""

import subprocess
import sys

PROGRAM = """
import sys
for name in ("crc32c", "cramjam", "kio"):
    sys.modules[name] = None
from dlog.batch.records import Record, decode, encode
from dlog.compression import Codec
from dlog.wire import fetch, fetch_client, frame
batch = encode([Record(b"k", b"v", (), 5, 0)], codec=Codec.GZIP)
assert decode(batch) == [Record(b"k", b"v", (), 5, 0)]
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"hypothesis", "numpy", "yaml", "typing_extensions"}, loaded
"""

LAZY = """
import sys
from dlog.wire import messages
assert "kio" not in sys.modules
messages.request_type(18, 0)
assert "kio.schema.api_versions.v0.request" in sys.modules
assert "kio.schema.metadata.v12.request" not in sys.modules
assert "kio.serial" not in sys.modules
assert "hypothesis" not in sys.modules
import hypothesis.strategies
"""


WITHOUT_KIO = """
import sys
sys.modules["kio"] = None
from dlog.wire import messages
try:
    messages.request_type(3, 12)
except ModuleNotFoundError as error:
    assert error.name in ("kio", "kio.static"), error.name
else:
    raise AssertionError("it was imported")
"""


def run(program: str) -> None:
    """Run a program in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_third_party_packages() -> None:
    run(PROGRAM)


def test_messages_load_kio_piece_by_piece() -> None:
    run(LAZY)


def test_kio_that_is_not_installed_is_not_taken_for_an_unknown_message() -> None:
    run(WITHOUT_KIO)
