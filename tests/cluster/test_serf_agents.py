"""Membership over real Serf agents: killed, paused, left, restarted, partitioned, foreign."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dlogd.membership.members import DisagreementKind, MemberState, disagreements
from dlogd.membership.serf import SerfSettings
from dlogd.metadata.state.image import NodeAddress, NodeRegistration
from tests.cluster.agents import AUTH_KEY, SERF, Seat, SerfAgent, needs_serf
from tests.cluster.hosts import Hosts, waits_for_hosts

pytestmark = needs_serf

ALIVE, FAILED, LEFT = MemberState.ALIVE, MemberState.FAILED, MemberState.LEFT
UNCERTAIN = MemberState.UNCERTAIN


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 150)

    asyncio.run(bounded())


@asynccontextmanager
async def cluster(folder: Path, agents: list[SerfAgent] | None = None) -> AsyncIterator[list[Seat]]:
    """Three agents that know each other, and the memberships beside them."""
    if agents is None:
        agents = [SerfAgent(folder / f"n{i}", f"host{i}") for i in (1, 2, 3)]
    seats = [Seat(i, agent) for i, agent in enumerate(agents, 1)]
    try:
        agents[0].start()
        await seats[0].start()
        await seats[0].until_states(n1=ALIVE)
        for seat in seats[1:]:
            seat.agent._settings["start_join"] = [agents[0].gossip]
            seat.agent.start()
            # From now on by the snapshot, or by what its membership knows.
            seat.agent._settings["start_join"] = []
            await seat.start()
        await asyncio.gather(*(each.until_states(n1=ALIVE, n2=ALIVE, n3=ALIVE) for each in seats))
        yield seats
    finally:
        for seat in seats:
            await seat.membership.stop()
        for agent in agents:
            agent.kill()


def registrations(**more: Any) -> dict[Any, NodeRegistration]:
    return {
        node_id: NodeRegistration(
            node_id=node_id,  # type: ignore[arg-type]
            node_epoch=1,
            directory_ids=(),
            addresses=(NodeAddress(listener="internal", host="127.0.0.1", port=9000 + node_id),),
            rack="r",
            version="1",
            fenced=False,
            **more,
        )
        for node_id in (1, 2, 3)
    }


def test_members_know_each_other_and_what_they_announce(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as seats:
            for seat in seats:
                assert seat.membership.problem is None
                for member in seat.membership.members():
                    assert member.rack == "r"
                    assert member.version == "1"
                    address = member.address("internal")
                    assert address is not None
                    assert (address.host, address.port) == ("127.0.0.1", 9000 + member.node_id)
                assert disagreements(seat.membership.members(), registrations()) == ()
            seats[1].announce(rack="other")
            await seats[0].until(lambda m: m.members()[1].rack == "other")
            await seats[2].until(lambda m: m.members()[1].rack == "other")
            # A foreign agent's tags and one that is no dlog node at all.
            stranger = SerfAgent(tmp_path / "s", "stranger", join=[seats[0].agent.gossip])
            stranger.start()
            try:
                await seats[0].until(lambda m: m.counters.foreign == 1)
                assert [m.node_id for m in seats[0].membership.members()] == [1, 2, 3]
            finally:
                stranger.kill()

    run(work)


def test_a_killed_agent_fails_and_comes_back_with_its_tags(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as seats:
            victim = seats[2]
            victim.agent.kill()
            # Its own node learns that it is blind, and still knows what it knew.
            await victim.until(lambda m: m.problem is not None)
            assert set(victim.states()) == {1, 2, 3}
            await seats[0].until_states(n1=ALIVE, n2=ALIVE, n3=FAILED)
            found = disagreements(seats[0].membership.members(), registrations())
            assert [(each.node_id, each.kind) for each in found] == [(3, DisagreementKind.GONE)]
            # The agent returns without tags: they are nowhere but in the announcement.
            victim.agent.start()
            for seat in seats:
                await seat.until_states(n1=ALIVE, n2=ALIVE, n3=ALIVE)
            assert victim.membership.problem is None
            assert victim.membership.counters.connects_total == 2

    run(work)


def test_a_paused_agent_is_given_up_and_asked_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as seats:
            seats[1].agent.signal(signal.SIGSTOP)
            await seats[1].until(lambda m: m.problem is not None)
            assert "in time" in str(seats[1].membership.problem)
            await seats[0].until_states(n1=ALIVE, n2=FAILED, n3=ALIVE)
            seats[1].agent.signal(signal.SIGCONT)
            for seat in seats:
                await seat.until_states(n1=ALIVE, n2=ALIVE, n3=ALIVE)
                await seat.until(lambda m: m.problem is None)

    run(work)


def test_leaving_is_not_failing_and_a_return_is_seen_also_after_force_leave(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as seats:
            seats[2].agent.leave()
            await seats[0].until_states(n1=ALIVE, n2=ALIVE, n3=LEFT)
            seats[2].agent.start()
            for seat in seats:
                await seat.until_states(n1=ALIVE, n2=ALIVE, n3=ALIVE)
            # An operator throws a living node out of the gossip: never called dead, it heals.
            first = seats[0].agent
            assert SERF is not None
            force = [
                SERF,
                "force-leave",
                f"-rpc-addr={first.rpc}",
                f"-rpc-auth={AUTH_KEY}",
            ]
            marks = [len(seat.seen) for seat in seats]
            subprocess.run([*force, "host3"], check=True, capture_output=True, timeout=20)
            # The event is at most a second away; the next tags say that it has been seen.
            seats[2].announce(rack="after")
            for seat in seats:
                await seat.until(lambda m: m.members()[2].rack == "after")
                await seat.until_states(n1=ALIVE, n2=ALIVE, n3=ALIVE)
            for seat, mark in zip(seats, marks, strict=True):
                states = {members[2].state for members in seat.seen[mark:]}
                assert states <= {ALIVE, UNCERTAIN}

    run(work)


def test_all_agents_restart_without_snapshots_and_are_joined_by_their_nodes(tmp_path: Path) -> None:
    async def work() -> None:
        agents = [SerfAgent(tmp_path / f"n{i}", f"host{i}") for i in (1, 2, 3)]
        join = (agents[0].gossip, agents[1].gossip)
        settings = SerfSettings(
            timeout_ms=1500, resync_ms=1000, rejoin_ms=1000, backoff_ms_max=500, join=join
        )
        seats = [Seat(i, agent, settings) for i, agent in enumerate(agents, 1)]
        try:
            # The nodes first: an agent that is not there yet is no error.
            for seat in seats:
                await seat.start()
                assert seat.membership.problem is not None
            for _ in range(2):
                for agent in agents:
                    agent.forget()
                    agent.start()
                for seat in seats:
                    await seat.until_states(n1=ALIVE, n2=ALIVE, n3=ALIVE)
                    await seat.until(lambda m: m.problem is None)
                for agent in agents:
                    agent.kill()
                for seat in seats:
                    await seat.until(lambda m: m.problem is not None)
        finally:
            for seat in seats:
                await seat.membership.stop()
            for agent in agents:
                agent.kill()

    run(work)


def test_a_wrong_key_is_told_and_a_claimed_id_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as seats:
            wrong = Seat(9, seats[0].agent, SerfSettings(auth_key="wrong", backoff_ms_max=200))
            await wrong.start()
            await wrong.until(lambda m: "Invalid authentication" in str(m.problem))
            await wrong.membership.stop()
            assert wrong.membership.members() == ()
            # Tags beyond what gossip carries are refused by the agent, and that is shown.
            seats[0].membership.announce({"dlog": "1", "node": "1", "rack": "x" * 600})
            await seats[0].until(lambda m: "refuses" in str(m.problem))
            seats[0].announce()
            await seats[0].until(lambda m: m.problem is None)
            # Two agents say that they are node 1.
            twin = SerfAgent(tmp_path / "twin", "twin", join=[seats[0].agent.gossip])
            twin.start()
            second = Seat(1, twin)
            try:
                await second.start()
                await seats[1].until(lambda m: m.counters.conflicts == 1)
                assert "node 1" in str(seats[1].membership.problem)
                await second.membership.stop()
                twin.kill()
                await seats[1].until(lambda m: m.problem is None)
                assert seats[1].states() == {1: ALIVE, 2: ALIVE, 3: ALIVE}
            finally:
                twin.kill()

    run(work)


@pytest.mark.root
@waits_for_hosts
def test_a_partition_is_seen_from_both_sides_and_heals(tmp_path: Path, hosts: Hosts) -> None:
    async def work() -> None:
        agents = [
            SerfAgent(
                tmp_path / f"n{i}",
                f"host{i}",
                host=hosts.address(i),
                rpc_host=hosts.outside(i),
                namespace=hosts.name(i),
            )
            for i in (1, 2, 3)
        ]
        async with cluster(tmp_path, agents) as seats:
            hosts.cut(3)
            await seats[0].until_states(n1=ALIVE, n2=ALIVE, n3=FAILED)
            await seats[1].until_states(n1=ALIVE, n2=ALIVE, n3=FAILED)
            await seats[2].until_states(n1=FAILED, n2=FAILED, n3=ALIVE)
            # Each agent still answers: gossip is wrong about nobody's place in the metadata.
            assert all(seat.membership.problem is None for seat in seats)
            found = disagreements(seats[2].membership.members(), registrations())
            assert [each.node_id for each in found] == [1, 2]
            hosts.heal(3)
            for seat in seats:
                await seat.until_states(n1=ALIVE, n2=ALIVE, n3=ALIVE)

    run(work)
