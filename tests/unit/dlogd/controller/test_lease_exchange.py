"""Heartbeats, probes and leases between nodes in virtual time: killed, silent, paused, cut off."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import DisconnectedError, TransportError
from dlog.transport import Address, ConnectionOptions, connect
from dlog.types import NodeId
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.leases import Condemned
from dlogd.internal import messages, node_listener
from dlogd.internal.beat import Beat
from dlogd.internal.messages import Heartbeat, Probe
from tests.fakes.lease_cluster import CLUSTER, PORT, TIMINGS, Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(drift_ppm=900)
    made.until(lambda: all(node.holds() for node in made.nodes.values()), 2_000)
    # So long a new controller takes for held what its predecessor may have granted.
    made.run(TIMINGS.authority_ms + TIMINGS.lease_ms)
    return made


def test_everybody_keeps_a_lease(cluster: Cluster) -> None:
    cluster.run(60_000)
    for node in cluster.nodes.values():
        assert node.changes == [True]
        assert node.keeper.problem is None
        assert node.keeper.counters.granted_total > 150
    assert all(cluster.condemned(i) is None for i in (1, 2, 3))


def test_a_killed_process_is_given_up_at_once(cluster: Cluster) -> None:
    cluster.nodes[2].kill()
    taken_ms = cluster.until(lambda: cluster.condemned(2) is not None)
    assert cluster.condemned(2) is Condemned.REFUSED
    assert taken_ms < 150
    cluster.run(5_000)
    assert cluster.nodes[3].holds()


def test_a_silent_host_is_given_up_when_its_lease_is_over(cluster: Cluster) -> None:
    cluster.nodes[2].cut_power()
    taken_ms = cluster.until(lambda: cluster.condemned(2) is not None)
    assert cluster.condemned(2) is Condemned.EXPIRED
    used_ms = TIMINGS.proof_pause_ms + TIMINGS.heartbeat_ms
    assert TIMINGS.lease_ms - used_ms < taken_ms < TIMINGS.held_ms + TIMINGS.heartbeat_ms


def test_a_paused_process_wakes_up_without_its_lease(cluster: Cluster) -> None:
    victim = cluster.nodes[2]
    victim.loop.pause()
    cluster.until(lambda: cluster.condemned(2) is Condemned.EXPIRED)
    assert not victim.holds()
    cluster.commit(2, fenced=True)
    victim.loop.resume()
    cluster.run(2_000)
    assert not victim.holds()
    assert victim.changes == [True, False]
    known = cluster.nodes[1].watch.table.liveness(cluster.nodes[1].now_ms())[NodeId(2)]  # type: ignore[union-attr]
    assert known.caught_up
    cluster.commit(2, fenced=False)
    cluster.until(victim.holds, 1_000)


@pytest.mark.parametrize("direction", [(2, 1), (1, 2)])
def test_a_one_way_cut_ends_the_lease_on_both_sides(
    cluster: Cluster, direction: tuple[int, int]
) -> None:
    source, target = (f"10.0.0.{each}" for each in direction)
    cluster.network.block(source, target)
    held_ms = cluster.until(lambda: not cluster.nodes[2].holds())
    assert held_ms <= TIMINGS.lease_ms
    if direction == (2, 1):
        # The controller hears nothing.
        cluster.until(lambda: cluster.condemned(2) is Condemned.EXPIRED)
        cluster.commit(2, fenced=True)
    else:
        # It hears heartbeats until the node gives the connection up, and grants what never arrives.
        cluster.until(lambda: cluster.condemned(2) is Condemned.EXPIRED, 30_000)
        cluster.commit(2, fenced=True)
    cluster.network.unblock_all()
    cluster.run(2_000)
    assert not cluster.nodes[2].holds()
    cluster.commit(2, fenced=False)
    cluster.until(cluster.nodes[2].holds, 1_500)


def test_a_broken_connection_alone_gives_nobody_up(cluster: Cluster) -> None:
    for _ in range(20):
        cluster.network.cut_some(1.0)
        cluster.run(400)
    assert all(cluster.condemned(i) is None for i in (1, 2, 3))
    assert all(node.changes == [True] for node in cluster.nodes.values())


def test_a_dead_controller_is_given_up_by_the_next_and_no_other_lease_ends(
    cluster: Cluster,
) -> None:
    cluster.nodes[1].kill()
    cluster.run(800)
    cluster.lead(2)
    assert cluster.until(lambda: cluster.condemned(1) is not None) < 300
    assert cluster.condemned(1) is Condemned.REFUSED
    cluster.run(10_000)
    assert cluster.condemned(3) is None
    assert cluster.nodes[3].changes == [True]
    assert cluster.nodes[2].changes == [True]


def test_a_silent_controller_is_outwaited_with_all_that_it_may_have_granted(
    cluster: Cluster,
) -> None:
    cluster.nodes[1].cut_power()
    cluster.run(800)
    cluster.lead(2)
    taken_ms = cluster.until(lambda: cluster.condemned(1) is not None)
    assert cluster.condemned(1) is Condemned.EXPIRED
    assert TIMINGS.lease_ms <= taken_ms < TIMINGS.held_ms + TIMINGS.heartbeat_ms


def test_a_controller_without_a_quorum_stops_granting(cluster: Cluster) -> None:
    old = cluster.nodes[1]
    old.proven = False
    # Node 3 and the old controller still believe in it.
    taken_ms = cluster.until(lambda: not cluster.nodes[3].holds() and not old.holds())
    assert taken_ms <= TIMINGS.lease_ms
    assert old.keeper.problem == "the controller grants no lease (NOT_CONTROLLER)"
    # Those who live are asked now and then, not all the time (L4).
    probes = [node.service.counters.probes_total for node in cluster.nodes.values()]
    assert max(probes) < 12
    old.proven = True
    cluster.until(lambda: cluster.condemned(3) is Condemned.EXPIRED)


def test_a_deposed_controller_and_its_last_believer_end_before_the_next_acts(
    cluster: Cluster,
) -> None:
    old, believer = cluster.nodes[1], cluster.nodes[3]
    for cut_off in (1, 3):
        cluster.network.block(f"10.0.0.{cut_off}", "10.0.0.2")
        cluster.network.block("10.0.0.2", f"10.0.0.{cut_off}")
    cluster.lead(2)
    cluster.believes[3] = cluster.believes[1] = 1
    # As late as can be: the old one learns of its last good round now.
    cluster.run(100)
    old.proven = False
    cluster.until(lambda: cluster.condemned(3) is not None)
    assert not believer.holds()
    assert not old.holds()
    assert cluster.condemned(3) is Condemned.EXPIRED


def test_a_process_that_was_replaced_is_given_up_at_once(cluster: Cluster) -> None:
    victim = cluster.nodes[2]
    victim.kill()
    victim.begin(-1)  # up again before the first probe, and not registered yet
    assert cluster.until(lambda: cluster.condemned(2) is not None) < 300
    assert cluster.condemned(2) is Condemned.REPLACED
    cluster.commit(2, node_epoch=2, fenced=True)
    victim.lease.begin(2)
    cluster.run(1_000)
    assert not victim.holds()
    cluster.commit(2, fenced=False)
    cluster.until(victim.holds, 1_500)


def test_a_surrendered_lease_is_given_up_by_both(cluster: Cluster) -> None:
    victim = cluster.nodes[3]
    victim.call(victim.keeper.surrender)
    assert cluster.until(lambda: cluster.condemned(3) is not None) < 100
    assert cluster.condemned(3) is Condemned.SURRENDERED
    assert not victim.holds()
    cluster.commit(3, fenced=True)
    cluster.commit(3, fenced=False)
    cluster.run(3_000)
    assert not victim.holds()  # until it registers anew


def test_a_controller_that_stood_still_gives_nobody_up(cluster: Cluster) -> None:
    controller = cluster.nodes[1]
    controller.loop.pause()
    cluster.run(10_000)
    controller.loop.resume()
    cluster.run(2_000)
    assert all(cluster.condemned(i) is None for i in (1, 2, 3))
    assert all(node.holds() for node in cluster.nodes.values())


def test_an_earlier_life_loses_its_lease_by_the_first_answer(cluster: Cluster) -> None:
    cluster.commit(2, node_epoch=9, fenced=True)
    assert cluster.until(lambda: not cluster.nodes[2].holds()) < 400


# The server by itself.


def ask(cluster: Cluster, encode: Callable[[int], bytes]) -> memoryview | TransportError:
    """Send a request to node 1 from node 3's host."""
    node = cluster.nodes[3]
    found: list[memoryview | TransportError] = []

    async def work() -> None:
        connection = await connect(
            node.loop, Address("10.0.0.1", PORT), ConnectionOptions(request_timeout_s=5)
        )
        try:
            found.append(await connection.call(encode))
        except TransportError as error:
            found.append(error)
        finally:
            connection.close()

    node.call(lambda: node.loop.create_task(work()))
    cluster.until(lambda: bool(found))
    return found[0]


def test_a_probe_is_answered_with_the_life_and_only_to_the_own_cluster(cluster: Cluster) -> None:
    for cluster_id, code in ((CLUSTER, 0), ("other", messages.INCONSISTENT_CLUSTER_ID)):
        probe = Probe(cluster_id=cluster_id, node_id=NodeId(3), controller_epoch=1)
        payload = ask(cluster, lambda cid, p=probe: messages.encode_probe(p, cid))  # type: ignore[misc]
        assert isinstance(payload, memoryview)
        answer = messages.decode_probe_answer(payload)
        assert (answer.error_code, answer.node_id, answer.node_epoch) == (code, 1, 1)
    assert cluster.nodes[1].service.counters.foreign_total == 1


def test_a_foreign_heartbeat_gets_nothing(cluster: Cluster) -> None:
    beat = Beat(node_id=NodeId(2), node_epoch=1, image_version=99, surrenders=True)
    request = Heartbeat(cluster_id="other", sequence=1, beat=beat)
    payload = ask(cluster, lambda cid: messages.encode_heartbeat(request, cid))
    assert isinstance(payload, memoryview)
    answer = messages.decode_heartbeat_answer(payload)
    assert answer.error_code == messages.INCONSISTENT_CLUSTER_ID
    assert answer.lease_ms == 0
    assert cluster.condemned(2) is None


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x02ab",
        b"\x00\x00\x00\x0a\x00\x03\x00\x00\x00\x00\x00\x01\xff\xff",
        messages._request(messages.HEARTBEAT, 1, CLUSTER, b"short"),
        messages._request(messages.PROBE, 1, "x" * 300, b"short"),
    ],
)
def test_nonsense_closes_the_connection_and_nothing_else(cluster: Cluster, frame: bytes) -> None:
    assert isinstance(ask(cluster, lambda _: frame), DisconnectedError)
    cluster.run(1_000)
    assert all(node.changes == [True] for node in cluster.nodes.values())


def test_idle_and_superfluous_connections_are_closed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes[3]
    lost: list[int] = []

    async def idle(number: int, *, proves: bool = True) -> None:
        connection = await connect(node.loop, Address("10.0.0.1", PORT))
        if proves:  # a request; nothing more is asked for here
            probe = Probe(cluster_id=CLUSTER, node_id=NodeId(3), controller_epoch=1)
            await connection.call(lambda each: messages.encode_probe(probe, each))
        await connection.wait_closed()
        lost.append(number)

    node.call(lambda: node.loop.create_task(idle(1)))
    taken_ms = cluster.until(lambda: lost == [1])
    assert 8_900 < taken_ms < 9_500
    node.call(lambda: node.loop.create_task(idle(4, proves=False)))
    assert 1_900 < cluster.until(lambda: lost == [1, 4]) < 2_200
    monkeypatch.setattr(node_listener, "CONNECTIONS_MAX", 3)
    node.call(lambda: node.loop.create_task(idle(2)))
    assert cluster.until(lambda: cluster.nodes[1].server.refused_total == 1) < 10


def test_the_default_timings_go_together_and_others_are_refused() -> None:
    assert LeaseTimings().problems() == []
    for changes, word in (
        ({"lease_ms": 1_000}, "5 times"),
        ({"heartbeat_ms": 0}, "positive"),
        ({"clock_drift_ppm": 200_000}, "clock_drift_ppm"),
        ({"election_ms_max": 1_500}, "election"),
        ({"probe_timeout_ms": 3_000}, "probe_timeout_ms"),
        ({"authority_ms": 500}, "authority_ms"),
        ({"authority_ms": 2_400}, "what is left"),
        ({"image_lag_ms_max": 100}, "image_lag"),
    ):
        problems = replace(LeaseTimings(), **changes).problems()
        assert any(word in problem for problem in problems), (changes, problems)
