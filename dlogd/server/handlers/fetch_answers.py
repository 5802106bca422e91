"""What an answer to a Fetch request is made of; pure. Used by `dlogd.server.handlers.fetch`."""

from collections.abc import Iterable, Sequence

from dlog.types import NodeId
from dlog.wire import fetch
from dlogd.replication.partition import Partition
from dlogd.server.slots import Piece, RangePiece
from dlogd.storage.reader import Read
from dlogd.storage.segment import SegmentRange


def referral(partition: Partition, index: int, node_id: NodeId) -> fetch.FetchedPartition:
    """Send a consumer to the follower in its own rack (KIP-392)."""
    watermark, log_start = partition.high_watermark, partition.log.log_start_offset
    return fetch.FetchedPartition(
        index, 0, watermark, watermark, log_start, 0, preferred_read_replica=node_id
    )


def holds_more(partition: Partition, entry: fetch.FetchPartition, read: Read) -> bool:
    """Tell whether there is more than the answer may hold, or than one segment: do not wait."""
    if not read.ranges:
        return entry[2] < partition.high_watermark
    last = read.ranges[-1]
    if last.segment is not partition.log.active:
        return True
    return last.position + last.length < last.readable_end


def interleave(parts: Iterable[bytes | int], ranges: Sequence[SegmentRange]) -> list[Piece]:
    """Put ranges of segments where an encoded answer has the sizes of records; acquires them."""
    pieces: list[Piece] = []
    found = iter(ranges)
    is_single = len(ranges) == 1  # of several partitions each is read in turn
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
            continue
        left = part
        while left > 0:
            each = next(found)
            each.segment.acquire()
            readable_end = each.readable_end if is_single else None
            pieces.append(RangePiece(each.segment, each.position, each.length, readable_end))
            left -= each.length
    return pieces
