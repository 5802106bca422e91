"""Holes in the rules about leases: `tests.property.lease_model` has to fall into each."""

from collections.abc import Callable

import pytest

from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.leases import (
    Beat,
    LeaseTable,
    NoLease,
)
from dlogd.controller.own_lease import OwnLease
from tests.property.lease_model import Cluster

Mutation = Callable[[pytest.MonkeyPatch], None]


def _unstretched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseTimings, "outwait_ms", lambda _self, duration_ms: duration_ms)


def _granting_whole_leases(patch: pytest.MonkeyPatch) -> None:
    real = LeaseTable.on_beat

    def on_beat(self: LeaseTable, beat: Beat, now_ms: int) -> int | NoLease:
        found = real(self, beat, now_ms)
        return found if isinstance(found, NoLease) else self._timings.lease_ms

    patch.setattr(LeaseTable, "on_beat", on_beat)


def _counting_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    real = OwnLease.on_send

    def on_send(self: OwnLease, now_ms: int) -> int:
        return real(self, now_ms + 200)

    patch.setattr(OwnLease, "on_send", on_send)


def _renewing_the_condemned(patch: pytest.MonkeyPatch) -> None:
    real = LeaseTable.on_beat

    def on_beat(self: LeaseTable, beat: Beat, now_ms: int) -> int | NoLease:
        entry = self._entries.get(beat.node_id)
        if entry is not None and not beat.surrenders:
            entry.condemned = None
        return real(self, beat, now_ms)

    patch.setattr(LeaseTable, "on_beat", on_beat)


def _granting_with_any_image(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseTable, "_is_recent", lambda *_: True)


def _acting_after_a_surrender(patch: pytest.MonkeyPatch) -> None:
    def surrender(self: OwnLease) -> None:
        self.surrendered = True

    patch.setattr(OwnLease, "surrender", surrender)


def _obeying_the_deposed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cluster, "is_stale", lambda _self, _reign: False)


HOLE_SEEDS = 200
HOLES: dict[str, Mutation] = {
    "clocks are taken for equal": _unstretched,
    "leases do not count from the proof": _granting_whole_leases,
    "a lease counts from the answer": _counting_from_the_answer,
    "a heartbeat renews what was condemned": _renewing_the_condemned,
    "leases are granted with any image": _granting_with_any_image,
    "a node acts after its surrender": _acting_after_a_surrender,
    "the deposed are obeyed (H11)": _obeying_the_deposed,
}
