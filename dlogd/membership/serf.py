"""Members from a Serf agent on this host: events, tags, joins, reconnection.

Every event, every reconnection and every `resync_ms` lead to the same step: ask the agent for all
members, compare with what was known, tell subscribers of the difference, and put the agent's own
tags right. So a missed, late or repeated event does no harm, and an agent that restarts without its
tags gets them back. While the agent cannot be asked, the members stay as they were and `problem`
says so.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog.transport import Address
from dlog.types import NodeId
from dlogd.membership.members import (
    MalformedTagsError,
    Member,
    MembershipCounters,
    MemberState,
    OnMembers,
    decode_tags,
    is_dlog,
)
from dlogd.membership.serf_rpc import SerfError, SerfRefusedError, SerfRpc
from dlogd.runtime.randomness import Rng
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

GATHER_S = 0.02
JOIN_ADDRESSES_MAX = 5
_STATES = {
    b"alive": MemberState.ALIVE,
    b"left": MemberState.LEFT,
    b"failed": MemberState.FAILED,
}
_PREFERENCE = [MemberState.ALIVE, MemberState.UNCERTAIN, MemberState.FAILED, MemberState.LEFT]
_OWN_TAGS = frozenset({"dlog", "node", "cluster", "rack", "version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SerfSettings:
    """How to reach the agent, and how often to look."""

    address: Address = field(default_factory=lambda: Address("127.0.0.1", 7373))
    auth_key: str | None = field(default=None, repr=False)
    join: tuple[str, ...] = ()  # gossip addresses of other agents, host:port
    timeout_ms: int = 5_000  # of one call
    join_timeout_ms: int = 30_000  # the agent tries its addresses one by one
    resync_ms: int = 10_000
    rejoin_ms: int = 60_000
    backoff_ms_min: int = 100
    backoff_ms_max: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent of the gossip, as the RPC describes it; tags that are not UTF-8 are None."""

    name: str
    gossip: str  # host:port, empty when unknown
    tags: Mapping[str, str] | None
    state: MemberState


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one look at the agents gave."""

    members: tuple[Member, ...]  # sorted by node id, one for each
    foreign: int
    malformed: int
    conflicts: tuple[NodeId, ...]  # claimed by more than one agent that may live


def agent_of(raw: Mapping[bytes, Any]) -> Agent:
    """Read one entry of the `members` answer; what it lacks is empty."""
    name, status, tags = raw.get(b"Name"), raw.get(b"Status"), raw.get(b"Tags")
    decoded: dict[str, str] | None = {}
    try:
        if isinstance(tags, dict):
            decoded = {key.decode(): value.decode() for key, value in tags.items()}
    except (UnicodeDecodeError, AttributeError):
        decoded = None
    return Agent(
        name=name.decode("utf-8", "replace") if isinstance(name, bytes) else "",
        gossip=_gossip_address(raw.get(b"Addr"), raw.get(b"Port")),
        tags=decoded,
        # `leaving` and whatever else comes are not proof of anything.
        state=_STATES.get(status, MemberState.UNCERTAIN)
        if isinstance(status, bytes)
        else MemberState.UNCERTAIN,
    )


def _gossip_address(host: object, port: object) -> str:
    if not isinstance(host, bytes) or not isinstance(port, int):
        return ""
    if len(host) == 16 and host.startswith(b"\x00" * 10 + b"\xff\xff"):
        host = host[12:]
    if len(host) == 4:
        return f"{'.'.join(str(each) for each in host)}:{port}"
    if len(host) == 16:
        groups = [host[i : i + 2].hex() for i in range(0, 16, 2)]
        return f"[{':'.join(groups)}]:{port}"
    return ""


def view_of(agents: Iterable[Agent], cluster_id: str) -> View:
    """Return the members among the agents: dlog nodes of this cluster, or of none yet."""
    foreign = malformed = 0
    claims: dict[NodeId, list[tuple[int, str, Member]]] = {}
    for agent in agents:
        tags = agent.tags
        if tags is not None and not is_dlog(tags):
            foreign += 1
            continue
        try:
            if tags is None:
                raise MalformedTagsError("tags are not UTF-8")
            member = decode_tags(tags, agent.state)
        except MalformedTagsError as error:
            malformed += 1
            log.debug("Ignored a Serf agent name=%r error=%s", agent.name, error)
            continue
        if cluster_id and tags.get("cluster", cluster_id) != cluster_id:
            foreign += 1
            continue
        rank = _PREFERENCE.index(agent.state)
        claims.setdefault(member.node_id, []).append((rank, agent.name, member))
    members, conflicts = [], []
    for node_id in sorted(claims):
        ranked = sorted(claims[node_id], key=lambda each: each[:2])
        members.append(ranked[0][2])
        if sum(rank <= 1 for rank, _, _ in ranked) > 1:
            conflicts.append(node_id)
    return View(
        members=tuple(members), foreign=foreign, malformed=malformed, conflicts=tuple(conflicts)
    )


def _is_ours(tag: str) -> bool:
    return tag in _OWN_TAGS or tag.startswith("a.")


class SerfMembership:
    """Implements `Membership` by a Serf agent. Owner: the event loop's thread."""

    def __init__(
        self, settings: SerfSettings, *, loop: asyncio.AbstractEventLoop, rng: Rng
    ) -> None:
        self.counters = MembershipCounters()
        self._settings = settings
        self._loop = loop
        self._rng = rng
        self._members: tuple[Member, ...] = ()
        self._conflicts: tuple[NodeId, ...] = ()
        self._callbacks: list[OnMembers] = []
        self._tags: dict[str, str] | None = None
        self._tasks = Tasks()
        self._wake = asyncio.Event()
        self._problem: str | None = "the agent was not asked yet"
        self._tags_problem: str | None = None
        self._synced = False  # in this session
        self._joining = False
        self._known: list[str] = []  # gossip addresses of others, as last seen

    @property
    def problem(self) -> str | None:
        """Why the members may be out of date, or this node not seen rightly; else None."""
        if self._problem is not None:
            return self._problem
        if self._conflicts:
            return f"more than one live agent claims node {self._conflicts[0]}"
        return self._tags_problem

    def members(self) -> tuple[Member, ...]:
        """Return what the agent said last, sorted by node id."""
        return self._members

    def subscribe(self, callback: OnMembers) -> None:
        """Call back after each change."""
        self._callbacks.append(callback)

    def announce(self, tags: Mapping[str, str]) -> None:
        """Give the agent these tags now, and again whenever it has lost them."""
        self._tags = dict(tags)
        self._wake.set()

    async def start(self) -> None:
        """Begin to look for the agent; it may come later."""
        self._tasks.spawn("serf", self._run())

    async def stop(self) -> None:
        """Close the connection. The agent keeps running and the node stays a member."""
        await self._tasks.close()

    # -- sessions

    async def _run(self) -> None:
        settings = self._settings
        backoff_ms = settings.backoff_ms_min
        while True:
            self._synced = False
            try:
                await self._session()
            except SerfError as error:
                self._on_failure(str(error))
            if self._synced:
                backoff_ms = settings.backoff_ms_min
            # All nodes of a rack see their agents restart at once, after an upgrade for one.
            await asyncio.sleep(backoff_ms / 1000 * self._rng.uniform(0.5, 1.0))
            backoff_ms = min(2 * backoff_ms, settings.backoff_ms_max)

    def _on_failure(self, reason: str) -> None:
        if not self._synced:
            self.counters.connect_failures_total += 1
        if reason != self._problem:
            log.warning("Lost the Serf agent address=%s reason=%r", self._settings.address, reason)
        self._problem = reason

    async def _session(self) -> None:
        settings = self._settings
        rpc = await SerfRpc.connect(
            self._loop,
            settings.address,
            auth_key=settings.auth_key,
            timeout_s=settings.timeout_ms / 1000,
        )
        try:
            rpc.closed.add_done_callback(lambda _: self._wake.set())
            own_name = await rpc.own_name()
            # First the stream, then the look: what changes between them is seen twice, not never.
            await rpc.subscribe(self._on_event)
            join_at = self._loop.time()
            while True:
                self._wake.clear()
                agents = await self._resync(rpc, own_name)
                if self._loop.time() >= join_at:
                    join_at = self._loop.time() + settings.rejoin_ms / 1000
                    self._join(agents, own_name)
                await self._wait()
                if rpc.closed.done():
                    raise SerfError(rpc.closed.result())
        finally:
            rpc.close()

    def _on_event(self) -> None:
        self.counters.events_total += 1
        self._wake.set()

    async def _wait(self) -> None:
        """Return when there is reason to look again."""
        try:
            async with asyncio.timeout(self._settings.resync_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(GATHER_S)  # events come in groups

    # -- one look

    async def _resync(self, rpc: SerfRpc, own_name: str) -> list[Agent]:
        """Make members and own tags equal to what the agent says and what was announced."""
        agents = [agent_of(each) for each in await rpc.members()]
        self.counters.resyncs_total += 1
        if not self._synced:
            self._synced = True
            self.counters.connects_total += 1
            log.info("Connected to the Serf agent name=%s agents=%d", own_name, len(agents))
        self._problem = None
        announced = self._tags
        cluster_id = (announced or {}).get("cluster", "")
        self._take(view_of(agents, cluster_id))
        own = next((each for each in agents if each.name == own_name), None)
        if announced is not None and own is not None:
            await self._put_tags_right(rpc, announced, own.tags or {})
        return agents

    async def _put_tags_right(
        self, rpc: SerfRpc, announced: Mapping[str, str], present: Mapping[str, str]
    ) -> None:
        stale = [tag for tag in sorted(present) if _is_ours(tag) and tag not in announced]
        if not stale and all(present.get(tag) == value for tag, value in announced.items()):
            self._tags_problem = None
            return
        try:
            await rpc.set_tags(announced, stale)
        except SerfRefusedError as error:
            problem = f"the agent refuses this node's tags: {error}"
            if problem != self._tags_problem:
                log.error("Could not set Serf tags error=%s", error)
            self._tags_problem = problem

    def _take(self, view: View) -> None:
        counters = self.counters
        counters.foreign, counters.malformed = view.foreign, view.malformed
        counters.conflicts = len(view.conflicts)
        if view.conflicts != self._conflicts:
            self._conflicts = view.conflicts
            for node_id in view.conflicts:
                log.error("More than one live agent claims a node id node=%d", node_id)
        old, new = self._members, view.members
        if old == new:
            return
        self._members = new
        counters.changes_total += 1
        _log_changes(old, new)
        for callback in self._callbacks:
            callback(old, new)

    # -- joins

    def _join(self, agents: list[Agent], own_name: str) -> None:
        """Join in the background; it also heals a node that others show as leaving."""
        others = [
            each.gossip
            for each in agents
            if each.name != own_name and each.gossip and each.state is MemberState.ALIVE
        ]
        if others:
            # An agent that left and came back, or lost its snapshot, knows nobody; we still do.
            self._known = others
        picked = self._known
        if len(picked) > JOIN_ADDRESSES_MAX:
            picked = self._rng.sample(picked, JOIN_ADDRESSES_MAX)
        # Known ones first: an address of the configuration may cost the agent a time-out.
        addresses = list(dict.fromkeys([*picked, *self._settings.join]))
        if addresses and not self._joining:
            self._joining = True
            self._tasks.spawn("serf-join", self._join_through(addresses))

    async def _join_through(self, addresses: list[str]) -> None:
        settings = self._settings
        rpc = None
        try:
            # On a connection of its own, since the agent answers in turn and this may take long.
            rpc = await SerfRpc.connect(
                self._loop,
                settings.address,
                auth_key=settings.auth_key,
                timeout_s=settings.join_timeout_ms / 1000,
            )
            count = await rpc.join(addresses)
            log.debug("Joined through=%d of=%d", count, len(addresses))
        except SerfError as error:
            # The agent tries by itself too (retry_join), and we again after `rejoin_ms`.
            log.debug("Could not join the Serf cluster error=%s", error)
        finally:
            self._joining = False
            if rpc is not None:
                rpc.close()


def _log_changes(old: tuple[Member, ...], new: tuple[Member, ...]) -> None:
    before = {member.node_id: member for member in old}
    after = {member.node_id: member for member in new}
    for node_id in sorted({*before, *after}):
        was, now = before.get(node_id), after.get(node_id)
        if was != now:
            log.info(
                "Gossip state of a node changed node=%d from=%s to=%s",
                node_id,
                was.state.value if was is not None else "unknown",
                now.state.value if now is not None else "unknown",
            )
