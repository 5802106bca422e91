"""Parts of an answer to a Fetch request; pure. Used by `dlogd.server.handlers.fetch`."""

from collections.abc import Iterable, Sequence
from typing import Any

from dlog.errors import NotLeaderOrFollowerError, OffsetNotAvailableError
from dlog.types import NO_EPOCH, LeaderEpoch, Offset
from dlog.wire import fetch
from dlog.wire.topics import TopicKey
from dlogd.net.reply_slot import Piece, RangePiece
from dlogd.replication.partition.partition import Partition
from dlogd.server.handlers.offset_for_leader_epoch import end_of_epoch
from dlogd.storage.log.log_reader import Read
from dlogd.storage.segment.segment import SegmentRange

BYTES_MAX = 55 << 20
"""Bytes of records in one answer, whatever the client bears (KIP-541); a batch is always whole."""


class LogDivergedError(Exception):
    """A client has read from another log than this one: the unclean election of a leader cut it.

    `at`: the last epoch that both have, and where it ends here.
    """

    def __init__(self, epoch: LeaderEpoch, end_offset: Offset) -> None:
        super().__init__(f"the log differs from offset {end_offset} on")
        self.at = (epoch, end_offset)


def bounded(request: fetch.FetchRequest) -> fetch.FetchRequest:
    """Return the request, asking for no more than BYTES_MAX and waiting for no more either.

    Each partition once, too.
    """
    count = sum([len(entries) for _, entries in request.topics])
    if count > 1:  # most name one
        request = _named_once(request, count)
    if request.max_bytes <= BYTES_MAX:
        return request
    min_bytes = min(request.min_bytes, BYTES_MAX)
    return request._replace(max_bytes=BYTES_MAX, min_bytes=min_bytes)


def _named_once(request: fetch.FetchRequest, count: int) -> fetch.FetchRequest:
    """Return the request, of `count` entries, with a partition that is named again named once.

    As it is named last, as in Kafka's FetchRequest.fetchData: else one small request had the disk
    searched a hundred thousand times.
    """
    named = {(topic, entry[0]): entry for topic, entries in request.topics for entry in entries}
    if len(named) == count:
        return request
    once: dict[TopicKey, list[fetch.FetchPartition]] = {}
    for (topic, _), entry in named.items():
        once.setdefault(topic, []).append(entry)
    return request._replace(topics=list(once.items()))


def check_history(partition: Partition, offset: int, last_epoch: int) -> None:
    """Raise LogDivergedError when who has read up to `offset` has read what is not in this log.

    `last_epoch`: of the last batch before `offset`, as the client has it (KIP-320, KIP-595). Else
    it would go on behind what was lost, and miss what was written in its place. As in Kafka's
    Partition.readRecords, an epoch that is not in this log differs, too, wherever the one before it
    ends; and what was deleted is out of range, whatever was read.
    """
    if offset < partition.log.log_start_offset:
        return  # reading tells
    epoch, end_offset = end_of_epoch(partition, LeaderEpoch(last_epoch))
    if epoch == NO_EPOCH:  # nobody here has led in it yet
        epoch, end_offset = partition.log.last_epoch, partition.log.log_end_offset
    if epoch < last_epoch or end_offset < offset:
        raise LogDivergedError(epoch, end_offset)


def check_replica(
    partition: Partition, request: fetch.FetchRequest, offset: int, leader_epoch: int
) -> None:
    """Raise unless this replica may answer: the leader, or a follower that may be read.

    Replica id -2 compares replicas and reads any of them, as in Kafka.
    """
    if request.replica_id >= 0:
        raise NotLeaderOrFollowerError("Nodes replicate over the internal listener")
    in_sync = partition.reporter is not None and partition.is_in_sync
    if request.replica_id == fetch.COMPARING_REPLICA_ID or (request.rack_id and in_sync):
        partition.check_readable(leader_epoch)
        if partition.leader is None and offset > partition.log.log_end_offset:
            raise OffsetNotAvailableError(f"This follower has no offset {offset} yet")
    else:
        partition.check_serving(leader_epoch)


def readable_end(partition: Partition, replica_id: int, *, is_node: bool) -> int:
    """Return up to where may be read: what is committed; all by nodes that mend replicas."""
    reads_all = is_node and replica_id == fetch.COMPARING_REPLICA_ID
    return partition.log.log_end_offset if reads_all else partition.high_watermark


def without_records(partition: Partition, index: int, **news: Any) -> fetch.FetchedPartition:
    """Answer with `news` of a partition instead of records; fields of FetchedPartition."""
    watermark, log_start = partition.high_watermark, partition.log.log_start_offset
    return fetch.FetchedPartition(index, 0, watermark, watermark, log_start, 0, **news)


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
