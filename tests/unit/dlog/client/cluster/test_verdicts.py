"""What a producer does about a batch that is too large."""

import pytest

from dlog.client.cluster.failure_rules import Verdict, judge
from dlog.errors import RecordListTooLargeError, RecordTooLargeError, WireError


@pytest.mark.parametrize("error", [RecordTooLargeError("x"), RecordListTooLargeError("x")])
@pytest.mark.parametrize(
    ("is_idempotent", "record_count", "may_be_written", "expected"),
    [
        (True, 2, False, Verdict.SPLIT),
        (False, 2, False, Verdict.SPLIT),
        (True, 1, False, Verdict.GIVE_UP),
        (True, 2, True, Verdict.GIVE_UP),  # its halves would be appended beside it
        (False, 2, True, Verdict.SPLIT),  # repetitions are in order there
    ],
)
def test_too_large(
    error: WireError,
    is_idempotent: bool,
    record_count: int,
    may_be_written: bool,
    expected: Verdict,
) -> None:
    verdict = judge(
        error,
        is_idempotent=is_idempotent,
        is_oldest=True,
        record_count=record_count,
        may_be_written=may_be_written,
    )
    assert verdict is expected
