"""Names of a segment's files: twenty digits of its base offset, and a suffix for each kind."""

import re

from dlogd.storage.segment import offset_index, time_index

LOG = ".log"
IDX, TDX = offset_index.KIND.suffix, time_index.KIND.suffix
SUFFIXES = (IDX, TDX, LOG)
"""Of all files of a segment, in the order in which they are removed."""
SEGMENT_NAME = re.compile(rf"(\d{{20}})({'|'.join(map(re.escape, SUFFIXES))})")


def file_name(base_offset: int, suffix: str = LOG) -> str:
    """Return the name of a segment's file."""
    return f"{base_offset:020d}{suffix}"


def parse_name(name: str) -> tuple[int, str] | None:
    """Return (base offset, suffix) of a segment's file, None for any other name."""
    found = SEGMENT_NAME.fullmatch(name)
    return (int(found[1]), found[2]) if found else None
