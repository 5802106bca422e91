"""Producer ids are given out once, whoever gives them: from blocks so small that all ask often."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dlogd.server.handlers.producer_ids import ProducerIds
from tests.simulation.fleet.bounds import Value

BLOCK_COUNT = "dlogd.server.handlers.producer_ids.BLOCK_COUNT"
BLOCK_COUNTS = (1, 3, 1000, 1000)  # the last is as it is


def draw_block(seed: int) -> dict[str, Value]:
    """Return how many ids a node takes at once, where that is not as it is."""
    count = random.Random(f"{seed}/fleet/producer-ids").choice(BLOCK_COUNTS)
    is_usual = count == BLOCK_COUNTS[-1]
    return {} if is_usual else {BLOCK_COUNT: count}


def producer_lives(bounds: Mapping[str, Value]) -> tuple[int, ...]:
    """Return how many bursts producers may send before others take their place, with new ids."""
    return (1, 1, 5) if BLOCK_COUNT in bounds else (5, 1000, 1000)


@contextmanager
def watching_ids(violate: Callable[[str], None], count: Callable[[str], None]) -> Iterator[None]:
    """See every id that a node gives out, for a while."""
    given: set[int] = set()
    take = ProducerIds._take

    def watched(ids: Any) -> Any:
        fields: Any = take(ids)
        count("producer ids given out")
        if fields["producer_id"] in given:
            violate(f"producer-id: {fields['producer_id']} was given out twice")
        given.add(fields["producer_id"])
        return fields

    with mock.patch.object(ProducerIds, "_take", watched):
        yield
