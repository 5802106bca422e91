"""Names of rows in errors of the sink, by which a user finds the row. Pure."""

import pyarrow

_KEY_BYTES_SHOWN = 40


def name_row(rows: pyarrow.RecordBatch, index: int, number: int) -> str:
    """Return what a sentence says of a row: its `number` in the task, its key, its size."""
    words = f"row {number} of the task"
    value = rows.column("value")[index].cast(pyarrow.binary()).as_py()
    size = "no value" if value is None else f"a value of {len(value)} bytes"
    if "key" not in rows.schema.names:
        return f"{words}, {size}"
    key = rows.column("key")[index].cast(pyarrow.binary()).as_py()
    return f"{words}, {_shown(key)}, {size}"


def _shown(key: bytes | None) -> str:
    if key is None:
        return "no key"
    cut = key[:_KEY_BYTES_SHOWN]
    more = "" if len(key) <= _KEY_BYTES_SHOWN else f"... ({len(key)} bytes)"
    return f"key {cut!r}{more}"
