"""Retention by time against a plain list of records, whatever heads of batches claim."""

from itertools import takewhile
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlog.compression import Codec
from tests.fakes.lies import append_batch, lying
from tests.fakes.logs import run_virtual
from tests.fakes.retained_log import RETENTION_MS, Retained

ages = st.one_of(st.integers(0, 3 * RETENTION_MS), st.integers(-2 * RETENTION_MS, 0))
claims = st.one_of(st.none(), st.sampled_from([-1, 0]), ages)


class Sent(NamedTuple):
    """A batch: ages of its records and of what its head claims, ms; -1 and 0 stand for themselves.

    `rolls`: a new segment begins after it.
    """

    ages_ms: list[int]
    claim: int | None
    codec: Codec
    rolls: bool


batches = st.lists(
    st.builds(
        Sent,
        ages_ms=st.lists(ages, min_size=1, max_size=3),
        claim=claims,
        codec=st.sampled_from(list(Codec)),
        rolls=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches)
def test_what_is_due_is_deleted_and_nothing_else(sent: list[Sent]) -> None:
    async def scenario() -> None:
        log = Retained()
        await log.start()
        newest: dict[int, int] = {}  # by segment, of all records
        for each in sent:
            now_ms = log.now_ms
            times = [now_ms - age for age in each.ages_ms]
            claim = each.claim if each.claim in (None, -1, 0) else now_ms - (each.claim or 0)
            assert append_batch(log.log, lying(times, claim, each.codec, size=9)) is not None
            base = log.log.active.base_offset
            newest[base] = max([*times, newest.get(base, 0)])
            await log.log.flush()
            if each.rolls:
                await log.close_segments()

        def due() -> int:
            """Return where the log may begin now."""
            limit_ms = log.now_ms - RETENTION_MS
            count = len([*takewhile(lambda ms: ms < limit_ms, newest.values())])
            bases = [*newest, log.log.log_end_offset]
            return bases[count]

        assert log.log.log_start_offset <= due()
        for _ in range(4):
            await log.wait(RETENTION_MS // 3)
            assert log.log.log_start_offset <= due()
        # Nothing was written for as long as records are kept: no head keeps anything any more.
        expected = due()
        await log.wait(100)
        assert log.log.log_start_offset >= expected
        await log.host.stop()

    run_virtual(scenario)
