"""Holes in what becomes of the texts and the batches of strangers.

Opened as the others of `TESTED` (test_mutants.py), each with the tests of which one at least sees
it. A constant is not replaced where its test takes the constant as its measure.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import yaml

from dlog import compression
from dlogctl.output import escaping
from dlogd.config import plain_yaml
from dlogd.config.plain_yaml import PlainYamlError
from dlogd.replication.partition.record_validation import RecordTimes
from dlogd.runtime import log_events
from dlogd.server import batch_unpacker
from dlogd.server.batch_unpacker import BatchUnpacker
from dlogd.server.handlers import produce
from tests.simulation.patches import Patch

UNIT = "tests/unit"
CHECKS = f"{UNIT}/dlogd/replication/partition/test_compressed_checks.py"
CODECS = f"{UNIT}/dlog/test_compression.py"


def _as_it_is(_: Any) -> Any:
    return lambda text: text


# -- texts


def _as_bytes(_: Any) -> Any:
    def escaped_record(line: bytes, *, is_json: bool) -> bytes:
        return line

    return escaped_record


def _compose(*, anchors: bool = True, depth: bool = True, count: bool = True) -> Any:
    """Return what composes nodes with some of the bounds of plain YAML only."""

    def compose_node(self: Any, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if anchors and getattr(event, "anchor", None) is not None:
            raise PlainYamlError("anchors and aliases are not read", event.start_mark.line + 1)
        self._depth += 1
        self._count += 1
        if depth and self._depth > plain_yaml.DEPTH_MAX:
            raise PlainYamlError("nested too deeply")
        if count and self._count > plain_yaml.NODES_MAX:
            raise PlainYamlError("has more than 20000 keys and values")
        node: yaml.Node | None = yaml.SafeLoader.compose_node(self, parent, index)
        self._depth -= 1
        return node

    return lambda _: compose_node


# -- batches


def _believe_the_head(_: Any) -> Any:
    return lambda *_: RecordTimes(-1, -1)


def _unpack_whole(original: Any) -> Any:
    return lambda batch, _bytes_max: original(batch, 1 << 30)


def _check_many(original: Any) -> Any:
    def init(self: Any, tasks: Any, run: Any) -> None:
        original(self, tasks, run)
        self._places = asyncio.Semaphore(1 << 20)

    return init


def _unpack_for_nobody(_: Any) -> Any:
    async def check(self: Any, connection: Any, copy: Any, then: Any) -> None:
        async with self._places:
            batch = copy()
            then(await self._run(lambda: batch_unpacker.outcome_of(batch)))
        connection.unstall()

    return check


def _give_all(original: Any) -> Any:
    return lambda *given: original(*given[:-1], 1 << 24)


# Patches, and the tests of which one at least must fail.
TESTED: dict[str, tuple[Sequence[Patch], Sequence[str]]] = {
    "texts: log lines have control characters": (
        ((log_events, "escaped", _as_it_is),),
        (
            f"{UNIT}/dlogd/runtime/test_logs.py::test_no_way_of_saying_a_text_lets_control_characters_out",
        ),
    ),
    "texts: cells of tsv have control characters": (
        ((escaping, "tsv_cell", _as_it_is),),
        (f"{UNIT}/dlogctl/output/test_dlogctl_saying.py::test_no_control_character_gets_out",),
    ),
    "texts: JSON has control characters": (
        ((escaping, "escaped_json", _as_it_is),),
        (f"{UNIT}/dlogctl/output/test_dlogctl_saying.py::test_escaped_json_is_the_same_document",),
    ),
    "texts: records have control characters": (
        ((escaping, "escaped_record", _as_bytes),),
        (f"{UNIT}/dlogctl/output/test_dlogctl_saying.py::test_records_as_people_see_them",),
    ),
    "texts: aliases of YAML are read": (
        ((plain_yaml._Loader, "compose_node", _compose(anchors=False)),),
        (f"{UNIT}/dlogd/config/test_config_load.py::test_wrong_shapes",),
    ),
    "texts: YAML is nested without a bound": (
        ((plain_yaml._Loader, "compose_node", _compose(depth=False)),),
        (f"{UNIT}/dlogd/config/test_config_load.py::test_wrong_shapes",),
    ),
    "texts: YAML has nodes without a bound": (
        ((plain_yaml._Loader, "compose_node", _compose(count=False)),),
        (f"{UNIT}/dlogd/config/test_config_load.py::test_wrong_shapes",),
    ),
    "batches: compressed records are believed": (
        (
            (produce, "outcome_within", _believe_the_head),
            (batch_unpacker, "outcome_of", _believe_the_head),
        ),
        (f"{CHECKS}::test_what_no_reader_can_decode_is_refused_and_nothing_is_appended",),
    ),
    "batches: large compressed records are believed": (
        ((batch_unpacker, "outcome_of", _believe_the_head),),
        (f"{CHECKS}::test_the_head_that_is_stored_says_the_true_time",),
    ),
    "batches: they are unpacked beyond what readers take": (
        ((batch_unpacker, "times_in", _unpack_whole),),
        (f"{CHECKS}::test_a_batch_that_decompresses_beyond_all_readers_is_refused",),
    ),
    "batches: all are unpacked at a time": (
        ((BatchUnpacker, "__init__", _check_many),),
        (f"{CHECKS}::test_others_go_on_while_large_batches_are_checked_two_at_a_time",),
    ),
    "batches: those of clients that left are unpacked": (
        ((BatchUnpacker, "_check", _unpack_for_nobody),),
        (
            f"{UNIT}/dlogd/server/test_checks_under_way.py"
            "::test_a_client_that_left_is_noticed_before_its_batch_is_unpacked",
        ),
    ),
    "batches: gzip gives more than is wanted": (
        ((compression, "_decompress_gzip", _give_all),),
        (f"{CODECS}::test_never_more_than_the_bound",),
    ),
    "batches: lz4 and zstd give more than is wanted": (
        ((compression, "_decompress_frames", _give_all),),
        (f"{CODECS}::test_never_more_than_the_bound",),
    ),
    "batches: snappy gives more than is wanted": (
        ((compression, "_decompress_snappy", _give_all),),
        (f"{CODECS}::test_never_more_than_the_bound",),
    ),
}
