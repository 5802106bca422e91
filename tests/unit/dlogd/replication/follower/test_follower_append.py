"""Batches of a leader, appended as they are."""

from pathlib import Path

import pytest

from dlog.errors import NotLeaderOrFollowerError
from dlog.types import LeaderEpoch
from dlogd.replication.follower.follower_append import append_as_follower
from dlogd.replication.partition.partition import Partition
from tests.fakes.batches import with_head
from tests.fakes.front import Front
from tests.fakes.led_partition import batch, check


@pytest.mark.parametrize("producer_id", [-1, 7])
def test_all_batches_of_one_answer_are_appended(producer_id: int, tmp_path: Path) -> None:
    """Few offsets, many bytes: whoever mixes both up stops early (fleet, seed 48)."""
    identity = {"producer_id": producer_id, "producer_epoch": 0 if producer_id >= 0 else -1}
    parts = [
        with_head(
            batch(leader_epoch=3, base_offset=number),
            base_sequence=number if producer_id >= 0 else -1,
            **identity,
        )
        for number in range(5)
    ]
    buffer = bytearray(b"head") + b"".join(parts)

    async def scenario(front: Front, partition: Partition) -> None:
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("another leads"))
        now_ms = front.clock.timestamp_ms()
        assert append_as_follower(partition, buffer, 4, len(buffer), now_ms) == len(buffer)
        assert partition.log.log_end_offset == 5
        if producer_id >= 0:
            # The last sequence is known: sent again, it is a duplicate at its offset.
            assert partition.producers.check(producer_id, 0, 4, 1)

    check(scenario, tmp_path)
