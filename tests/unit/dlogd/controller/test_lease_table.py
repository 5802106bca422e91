"""The book of leases and the own lease, rule by rule."""

from dataclasses import replace

from dlog.types import NodeId
from dlogd.controller.driver import node_liveness
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.leases import (
    RETURN_MS_MAX,
    Beat,
    Condemned,
    LeaseTable,
    NoLease,
    Probed,
)
from dlogd.controller.own_lease import UNANSWERED_MAX, Grant, OwnLease
from dlogd.metadata.state.image import NodeRegistration
from tests.fakes.lease_cluster import registration

TIMINGS = LeaseTimings()
ONE, TWO = NodeId(1), NodeId(2)
NODES: dict[NodeId, NodeRegistration] = {ONE: registration(1, 1), TWO: registration(2, 1)}
BEAT = Beat(node_id=ONE, node_epoch=1, image_version=10)


def table(now_ms: int = 0) -> LeaseTable:
    made = LeaseTable(TIMINGS, 5, NODES, 10, now_ms)
    made.on_contact(now_ms)
    return made


def condemned(leases: LeaseTable, now_ms: int, node_id: NodeId = ONE) -> Condemned | None:
    return leases.liveness(now_ms)[node_id].condemned


def test_nothing_is_granted_without_a_proof_of_leadership_or_on_an_old_one() -> None:
    leases = LeaseTable(TIMINGS, 5, NODES, 10, 0)
    assert leases.on_beat(BEAT, 0) is NoLease.NOT_CONTROLLER
    leases.on_contact(0)
    late_ms = TIMINGS.authority_ms - 1
    assert leases.on_beat(BEAT, late_ms) == TIMINGS.lease_ms - late_ms
    assert leases.on_beat(BEAT, TIMINGS.authority_ms) is NoLease.NOT_CONTROLLER
    leases.on_contact(-5)  # an older proof that comes later takes nothing back or forth
    assert leases.on_beat(BEAT, TIMINGS.authority_ms) is NoLease.NOT_CONTROLLER


def test_a_controller_that_begins_gives_others_the_time_to_start() -> None:
    leases = LeaseTable(TIMINGS, 5, NODES, 10, 0, begins=True)
    now_ms = 0
    for result, epoch in [
        (Probed.ANSWERED, -1),
        (Probed.ANSWERED, 7),
        *[(Probed.REFUSED, None)] * 4,
    ]:
        for order in leases.take_probes(now_ms):
            leases.on_probe(order, result, now_ms, epoch)
        now_ms += TIMINGS.probe_pause_ms
        assert condemned(leases, now_ms) is None
    while now_ms < TIMINGS.held_ms:
        leases.poll(now_ms)
        assert condemned(leases, now_ms, TWO) is None
        now_ms += 100
    leases.poll(now_ms)
    assert condemned(leases, now_ms, TWO) is Condemned.EXPIRED


def test_who_was_heard_by_a_controller_that_began_is_given_up_when_it_is_dead() -> None:
    leases = LeaseTable(TIMINGS, 5, NODES, 10, 0, begins=True)
    leases.on_contact(0)
    assert leases.on_beat(BEAT, 0) == TIMINGS.lease_ms
    leases.on_disconnect(ONE, 1, 10)
    now_ms = 10
    for _ in range(TIMINGS.refusals_min):
        (order,) = (each for each in leases.take_probes(now_ms) if each.node_id == ONE)
        leases.on_probe(order, Probed.REFUSED, now_ms)
        now_ms += TIMINGS.probe_pause_ms
    assert condemned(leases, now_ms) is Condemned.REFUSED


def test_only_the_registered_life_is_granted() -> None:
    leases = table()
    assert leases.on_beat(replace(BEAT, node_id=NodeId(9)), 1) is NoLease.UNKNOWN
    assert leases.on_beat(replace(BEAT, node_epoch=2), 1) is NoLease.UNKNOWN
    assert leases.on_beat(replace(BEAT, node_epoch=0), 1) is NoLease.REPLACED


def test_a_lease_that_ran_out_is_renewed_only_until_somebody_looked() -> None:
    leases = table()
    assert leases.on_beat(BEAT, 0) == TIMINGS.lease_ms
    now_ms = 0
    while now_ms + 100 < TIMINGS.held_ms:
        now_ms += 100
        leases.poll(now_ms)
    late_ms = TIMINGS.held_ms + 1
    leases.on_contact(late_ms)
    assert leases.on_beat(BEAT, late_ms) == TIMINGS.lease_ms
    while condemned(leases, late_ms) is None:
        late_ms += 100
        leases.poll(late_ms)
    assert condemned(leases, late_ms) is Condemned.EXPIRED
    leases.on_contact(late_ms)
    assert leases.on_beat(BEAT, late_ms) is NoLease.CONDEMNED
    assert leases.condemned_total[Condemned.EXPIRED] == 2  # nobody heard of the other


def test_a_fence_and_its_end_need_an_image_that_has_both() -> None:
    leases = table()
    fenced = {**NODES, ONE: registration(1, 1, fenced=True)}
    leases.on_image(fenced, 11, 10)
    assert leases.on_beat(BEAT, 10) is NoLease.FENCED
    assert not leases.liveness(10)[TWO].caught_up
    leases.on_image(NODES, 12, 20)
    assert leases.on_beat(replace(BEAT, image_version=11), 20) is NoLease.BEHIND
    assert leases.on_beat(replace(BEAT, image_version=12), 20) == TIMINGS.lease_ms - 20
    leases.on_image(fenced, 12, 30)  # nothing new
    assert leases.on_beat(replace(BEAT, image_version=12), 30) == TIMINGS.lease_ms - 30


def test_what_a_node_sent_before_its_fence_does_not_bring_it_back() -> None:
    leases = table()
    assert leases.on_beat(BEAT, 5) == TIMINGS.lease_ms - 5
    leases.on_image({**NODES, ONE: registration(1, 1, fenced=True)}, 11, 10)
    assert not leases.liveness(10)[ONE].caught_up  # it has died since
    leases.on_beat(BEAT, 12)  # it was on its way
    assert not leases.liveness(12)[ONE].caught_up
    leases.on_beat(replace(BEAT, image_version=11), 14)
    assert leases.liveness(14)[ONE].caught_up


def test_what_a_node_told_before_its_fence_does_not_readmit_it() -> None:
    """The simulation found it: a killed node was fenced, and unfenced by its last heartbeat."""
    leases = table()
    leases.on_contact(10)
    assert leases.on_beat(BEAT, 10) == TIMINGS.lease_ms
    assert leases.liveness(10)[ONE].caught_up
    leases.on_image({**NODES, ONE: registration(1, 1, fenced=True)}, 11, 20)
    found = leases.liveness(20)[ONE]
    assert not found.caught_up and found.heard_ms is None
    assert leases.on_beat(replace(BEAT, image_version=11), 30) is NoLease.FENCED
    assert leases.liveness(30)[ONE].caught_up


def test_a_node_that_does_not_follow_the_log_loses_its_lease() -> None:
    leases = table()
    leases.on_image(NODES, 11, 100)
    for now_ms in (100, 100 + TIMINGS.image_lag_ms_max - 1):
        leases.on_contact(now_ms)
        assert leases.on_beat(BEAT, now_ms) == TIMINGS.lease_ms
    now_ms += 1
    leases.on_contact(now_ms)
    assert leases.on_beat(BEAT, now_ms) is NoLease.BEHIND
    assert leases.on_beat(replace(BEAT, image_version=11), now_ms) == TIMINGS.lease_ms


def test_a_new_controller_asks_for_the_image_of_its_own_beginning() -> None:
    assert table().on_beat(replace(BEAT, image_version=9), 1) is NoLease.BEHIND


def test_all_are_probed_at_a_takeover_and_a_heartbeat_voids_the_probe() -> None:
    leases = table()
    first, second = leases.take_probes(0)
    assert (first.node_id, second.node_id) == (ONE, TWO)
    assert leases.take_probes(0) == []
    leases.on_beat(BEAT, 1)
    for _ in range(3):
        leases.on_probe(first, Probed.REFUSED, 2)
    assert condemned(leases, 2) is None
    leases.on_probe(second, Probed.REFUSED, 2)
    assert leases.next_probe_ms() == 2 + TIMINGS.probe_pause_ms
    (again,) = leases.take_probes(2 + TIMINGS.probe_pause_ms)
    leases.on_probe(again, Probed.REFUSED, 60)
    assert condemned(leases, 60, TWO) is Condemned.REFUSED
    assert leases.next_probe_ms() is None


def test_silence_between_two_refusals_makes_them_two_single_ones() -> None:
    leases = table()
    now_ms = 0
    for result in (Probed.REFUSED, Probed.SILENT, Probed.REFUSED):
        order = leases.take_probes(now_ms)[0]
        leases.on_probe(order, result, now_ms)
        now_ms += TIMINGS.probe_pause_ms
    assert condemned(leases, now_ms) is None


def test_an_answer_by_another_life_is_the_end_of_this_one() -> None:
    for life in (-1, 0, 2, None):
        leases = table()
        leases.on_probe(leases.take_probes(0)[0], Probed.ANSWERED, 1, life)
        assert condemned(leases, 1) is Condemned.REPLACED


def test_a_removed_node_is_forgotten_and_a_new_one_gets_time() -> None:
    leases = table()
    leases.on_image({TWO: registration(2, 2)}, 11, 50)
    assert list(leases.liveness(50)) == [TWO]
    assert leases.liveness(50)[TWO].node_epoch == 2
    assert leases.on_beat(BEAT, 50) is NoLease.UNKNOWN
    for now_ms in range(50, 50 + TIMINGS.held_ms, 100):
        leases.poll(now_ms)
        assert condemned(leases, now_ms, TWO) is None
    leases.poll(50 + TIMINGS.held_ms)
    assert condemned(leases, 50 + TIMINGS.held_ms, TWO) is Condemned.EXPIRED


def test_a_wish_to_shut_down_is_passed_on_and_the_lease_goes_on() -> None:
    leases = table()
    assert leases.on_beat(replace(BEAT, wants_shutdown=True), 1) == TIMINGS.lease_ms - 1
    assert leases.liveness(1)[ONE].wants_shutdown
    assert leases.liveness(1)[ONE].caught_up


# The own lease.


def grant(sequence: int, **changes: int) -> Grant:
    fields = {"sequence": sequence, "node_epoch": 1, "controller_epoch": 5, "lease_ms": 1_000}
    return Grant(**{**fields, **changes})


def own() -> OwnLease:
    lease = OwnLease()
    lease.begin(1)
    return lease


def test_the_lease_counts_from_the_sending() -> None:
    lease = own()
    sequence = lease.on_send(100)
    assert not lease.is_valid(100)
    assert lease.on_grant(grant(sequence))
    assert lease.is_valid(1_099)
    assert not lease.is_valid(1_100)
    assert not lease.on_grant(grant(sequence))  # once only


def test_a_shorter_lease_takes_nothing_back() -> None:
    lease = own()
    first, second = lease.on_send(0), lease.on_send(10)
    lease.on_grant(grant(second))
    assert not lease.on_grant(grant(first))
    assert lease.valid_until_ms == 1_010


def test_grants_for_others_and_of_the_deposed_do_not_count() -> None:
    lease = own()
    assert not lease.on_grant(grant(99))
    assert not lease.on_grant(grant(lease.on_send(0), node_epoch=2))
    lease.on_controller(6)
    assert not lease.on_grant(grant(lease.on_send(0)))
    assert lease.on_grant(grant(lease.on_send(0), controller_epoch=6))
    nobody = OwnLease()
    assert not nobody.on_grant(grant(nobody.on_send(0), node_epoch=-1))


def test_a_refusal_ends_the_lease_only_when_it_says_so_and_is_of_now() -> None:
    lease = own()
    lease.on_grant(grant(lease.on_send(0)))
    lease.on_refusal(lease.on_send(1), 5, fenced=False)
    lease.on_refusal(lease.on_send(2), 4, fenced=True)  # a deposed controller's
    lease.on_refusal(77, 5, fenced=True)
    assert lease.is_valid(3)
    pending = lease.on_send(3)
    lease.on_refusal(lease.on_send(4), 5, fenced=True)
    assert not lease.is_valid(4)
    assert not lease.on_grant(grant(pending))


def test_a_surrender_holds_until_the_next_life() -> None:
    lease = own()
    pending = lease.on_send(0)
    lease.surrender()
    assert not lease.on_grant(grant(pending))
    assert not lease.on_grant(grant(lease.on_send(1)))
    lease.begin(2)
    assert lease.on_grant(grant(lease.on_send(2), node_epoch=2))


def test_unanswered_heartbeats_are_forgotten_at_last() -> None:
    lease = own()
    first = lease.on_send(0)
    for now_ms in range(1, UNANSWERED_MAX + 1):
        last = lease.on_send(now_ms)
    assert not lease.on_grant(grant(first))
    assert lease.on_grant(grant(last))


def test_a_controller_that_is_slow_all_the_time_gives_up_who_is_silent_and_nobody_else() -> None:
    slow_ms = 3 * TIMINGS.heartbeat_ms
    leases = table()
    given_up_ms = 0
    for now_ms in range(slow_ms, 60_000, slow_ms):
        leases.on_contact(now_ms)
        assert leases.on_beat(BEAT, now_ms) == TIMINGS.lease_ms
        leases.poll(now_ms)
        assert condemned(leases, now_ms, ONE) is None
        if condemned(leases, now_ms, TWO) is not None and not given_up_ms:
            given_up_ms = now_ms
    assert 0 < given_up_ms < 15_000


def test_a_returning_node_that_is_never_heard_of_is_given_up() -> None:
    """It is in its ISRs: a write would wait for it."""
    returning = replace(registration(2, 7), fenced=True, returning=True)
    leases = table()
    leases.on_image({**NODES, TWO: returning}, 11, 0)
    leases.poll(RETURN_MS_MAX - 1)
    assert condemned(leases, RETURN_MS_MAX - 1, TWO) is None
    leases.poll(RETURN_MS_MAX)
    assert condemned(leases, RETURN_MS_MAX, TWO) is Condemned.EXPIRED
    assert node_liveness(leases.liveness(0), 0)[TWO].lease_end_ms <= 0

    # Fenced once more it may come back, with what it says from then on.
    now_ms = RETURN_MS_MAX + 5
    leases.on_contact(now_ms)
    leases.on_image({**NODES, TWO: replace(returning, returning=False)}, 12, now_ms)
    assert condemned(leases, now_ms, TWO) is None
    for version, ready in ((11, False), (12, True)):
        beat = replace(BEAT, node_id=TWO, node_epoch=7, image_version=version)
        assert leases.on_beat(beat, now_ms) is NoLease.FENCED
        assert leases.liveness(now_ms)[TWO].caught_up is ready
    leases.poll(now_ms + 10 * RETURN_MS_MAX)
    assert condemned(leases, now_ms, TWO) is None


def test_a_returning_node_has_time_as_long_as_it_is_heard_of() -> None:
    returning = replace(registration(2, 7), fenced=True, returning=True)
    leases = table()
    leases.on_image({**NODES, TWO: returning}, 11, 0)
    late_ms = RETURN_MS_MAX - 1
    leases.on_contact(late_ms)
    assert leases.on_beat(replace(BEAT, node_id=TWO, node_epoch=7), late_ms) is NoLease.FENCED
    leases.poll(late_ms + RETURN_MS_MAX - 1)
    assert condemned(leases, late_ms, TWO) is None
    leases.on_image({**NODES, TWO: replace(returning, fenced=False, returning=False)}, 12, late_ms)
    leases.poll(late_ms + TIMINGS.held_ms)
    assert condemned(leases, late_ms, TWO) is Condemned.EXPIRED  # as anybody with a lease
