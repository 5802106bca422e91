"""Golden bytes of the small files (docs/formats/small-files.md)."""

from pathlib import Path
from uuid import UUID

import pytest

from dlog.types import NodeId, Offset
from dlogd.storage.directory.replaced_marker import ReplacedMarker
from dlogd.storage.directory.replaced_marker import decode as decode_replaced
from dlogd.storage.directory.replaced_marker import encode as encode_replaced
from dlogd.storage.io.checkpoint_files import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LIFE,
    PROMISED_OFFSETS,
    Identity,
    Incarnation,
    MalformedFileError,
    decode_identity,
    decode_life,
    decode_metadata_version,
    decode_offsets,
    encode,
    encode_identity,
    encode_life,
    encode_metadata_version,
    encode_offsets,
)
from dlogd.storage.repair.scrub_schedule import Round
from dlogd.storage.repair.scrub_schedule import decode as decode_scrub
from dlogd.storage.repair.scrub_schedule import encode as encode_scrub

IDENTITY_BYTES = (
    b"dlog identity 1 94 0754ad1d\n"
    b"cluster_id=Ei2H0BgUTZWcYrPqDGQjrw\n"
    b"node_id=1\n"
    b"directory_id=1f0e0d0c-0b0a-4908-8706-050403020100\n"
)
LOG_NAME = "flights-0.00112233-4455-4677-8899-aabbccddeeff"
CLEAN_SHUTDOWN_BYTES = b"dlog clean-shutdown 1 50 5da81327\n" + f"42 {LOG_NAME}\n".encode()
HIGH_WATERMARKS_BYTES = b"dlog high-watermarks 1 34 2fc29653\n" + (
    b"9223372036854775807 a-0.x\n0 b-0.x\n"
)
PROMISED_BYTES = b"dlog promised-offsets 1 50 fccbd917\n" + f"42 {LOG_NAME}\n".encode()
METADATA_VERSION_BYTES = b"dlog metadata-version 1 5 020e95a5\n1234\n"
LIFE_BYTES = (
    b"dlog life 1 65 953da6e4\nnode_epoch=1207\nregistering=00112233-4455-4677-8899-aabbccddeeff\n"
)
SCRUB_BYTES = (
    b"dlog scrub 1 131 01ba7f1c\n"
    b"started_ms=1795000000000\n"
    b"ended_ms=0\n"
    b"read_bytes=1073741824\n"
    b"damages=0\n"
    b"offset=1500\n"
) + f"log={LOG_NAME}\n".encode()
REPLACES_BYTES = (
    b"dlog replaces 1 66 0153cb4f\n"
    b"node_epoch=1207\n"
    b"directory_id=1f0e0d0c-0b0a-4908-8706-050403020100\n"
)
DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "small-files.md"


def test_identity() -> None:
    identity = Identity(
        cluster_id="Ei2H0BgUTZWcYrPqDGQjrw",
        node_id=NodeId(1),
        directory_id=UUID("1f0e0d0c-0b0a-4908-8706-050403020100"),
    )
    assert encode_identity(identity) == IDENTITY_BYTES
    assert decode_identity(IDENTITY_BYTES) == identity


def test_life() -> None:
    registering = UUID("00112233-4455-4677-8899-aabbccddeeff")
    life = Incarnation(node_epoch=1207, registering=registering)
    assert encode_life(life) == LIFE_BYTES
    for each in (
        life,
        Incarnation(),
        Incarnation(node_epoch=0),
        Incarnation(registering=registering),
    ):
        assert decode_life(encode_life(each)) == each
    for text in ("node_epoch=x\n", "registering=12\n"):
        with pytest.raises(MalformedFileError):
            decode_life(encode(LIFE, text))


def test_clean_shutdown() -> None:
    offsets = {LOG_NAME: Offset(42)}
    assert encode_offsets(CLEAN_SHUTDOWN, offsets) == CLEAN_SHUTDOWN_BYTES
    assert decode_offsets(CLEAN_SHUTDOWN, CLEAN_SHUTDOWN_BYTES) == offsets


def test_high_watermarks() -> None:
    offsets = {"b-0.x": Offset(0), "a-0.x": Offset(2**63 - 1)}
    assert encode_offsets(HIGH_WATERMARKS, offsets) == HIGH_WATERMARKS_BYTES
    assert decode_offsets(HIGH_WATERMARKS, HIGH_WATERMARKS_BYTES) == offsets


def test_promised_offsets() -> None:
    offsets = {LOG_NAME: Offset(42)}
    assert encode_offsets(PROMISED_OFFSETS, offsets) == PROMISED_BYTES
    assert decode_offsets(PROMISED_OFFSETS, PROMISED_BYTES) == offsets
    with pytest.raises(MalformedFileError):
        decode_offsets(HIGH_WATERMARKS, PROMISED_BYTES)


def test_scrub() -> None:
    found = Round(
        started_ms=1795000000000, log=LOG_NAME, offset=1500, read_bytes=1 << 30, damages=0
    )
    assert encode_scrub(found) == SCRUB_BYTES
    assert decode_scrub(SCRUB_BYTES) == found
    for text in ("started_ms=x\n", "ended_ms=1\n", "what=1\nstarted_ms=1\n"):
        with pytest.raises(MalformedFileError):
            decode_scrub(encode("scrub", text))


def test_replaces() -> None:
    replaced = ReplacedMarker(1207, frozenset({UUID("1f0e0d0c-0b0a-4908-8706-050403020100")}))
    assert encode_replaced(replaced) == REPLACES_BYTES
    for each in (
        replaced,
        ReplacedMarker(),
        ReplacedMarker(3, frozenset({UUID(int=9), UUID(int=1)})),
    ):
        assert decode_replaced(encode_replaced(each)) == each
    for text in ("", "node_epoch=x\n", "directory_id=1\n", "node_epoch=1\ndirectory_id=1\n"):
        with pytest.raises(MalformedFileError):
            decode_replaced(encode("replaces", text))


def test_metadata_version() -> None:
    assert encode_metadata_version(1234) == METADATA_VERSION_BYTES
    assert decode_metadata_version(METADATA_VERSION_BYTES) == 1234


def test_the_document_shows_these_bytes() -> None:
    text = DOCUMENT.read_text()
    shown = (IDENTITY_BYTES, LIFE_BYTES, CLEAN_SHUTDOWN_BYTES, METADATA_VERSION_BYTES, SCRUB_BYTES)
    shown += (REPLACES_BYTES,)
    for data in shown:
        assert f"```\n{data.decode()}```" in text
