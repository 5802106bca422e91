"""The inner loops of the record codec: compiled where that was possible, else in Python.

`dlog.batch._speedups` is an optional extension in C (csrc/); `dlog.batch._pure` gives the same
bytes and values, thirty to seventy times slower. DLOG_PURE=1 in the environment forces the latter.
Users of the library do not import this: see `dlog.batch.build`, `columns` and `decoding`.
"""

import os

__all__ = [
    "IS_COMPILED",
    "RecordBuffer",
    "decode_columns",
    "decode_records",
    "find_record",
    "murmur2",
    "murmur2_rows",
    "walk_records",
]

IS_COMPILED = os.environ.get("DLOG_PURE") != "1"

if IS_COMPILED:
    try:
        from dlog.batch._speedups import (
            RecordBuffer,
            decode_columns,
            decode_records,
            find_record,
            murmur2,
            murmur2_rows,
            walk_records,
        )
    except ImportError:  # built without a compiler, or run from a zip
        IS_COMPILED = False

if not IS_COMPILED:
    from dlog.batch._pure import decode_columns, decode_records, murmur2, murmur2_rows
    from dlog.batch._pure_buffer import RecordBuffer
    from dlog.batch._pure_find import find_record
    from dlog.batch._pure_walk import walk_records
