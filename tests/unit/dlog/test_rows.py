"""Rows of fixed size out of memory that others hold."""

import struct
import subprocess
import sys
import textwrap

import pytest

from dlog.rows import unpack_rows

PAIR = struct.Struct("<iq")


def test_rows_come_out_of_any_buffer() -> None:
    data = bytearray(PAIR.pack(1, 2) + PAIR.pack(3, 4))
    for buffer in (bytes(data), data, memoryview(data)):
        assert list(unpack_rows(PAIR, buffer)) == [(1, 2), (3, 4)]
    with pytest.raises(struct.error):
        unpack_rows(PAIR, data[:-1])


def test_a_failure_between_rows_is_no_crash_of_the_interpreter() -> None:
    """CPython before 3.12.7 crashes when a cycle holds the iterator and its memoryview."""
    program = """
        import gc, struct
        from dlogd.replication import protocol

        def feed(frame):
            _, count, start = protocol.parse_kind(frame, 0, len(frame))
            taken, rows = protocol.parse_progress(frame, start, len(frame), count)
            for row in rows:
                raise ValueError("in the middle")

        frame = protocol.encode_progress(7, [(0, 0, 0, 0)] * 3)
        try:
            feed(memoryview(bytearray(frame))[4:])
        except ValueError as error:
            error.itself = error
        gc.collect()
        print("lives")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr
