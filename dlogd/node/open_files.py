"""Open files of a node: how many it may need at once. Pure."""

from dlogd.storage.segment.open_file_cache import OPEN_SEGMENTS_MAX

FILES_PER_SEGMENT = 3
OTHER_FILES_MAX = 64
"""Locks, the metadata journal, sockets of the node itself, and what is open for a moment."""


def open_files_needed(connection_count_max: int, partition_count: int) -> int:
    """Return how many descriptors clients and logs may take together."""
    segments = partition_count + OPEN_SEGMENTS_MAX
    return connection_count_max + FILES_PER_SEGMENT * segments + OTHER_FILES_MAX
