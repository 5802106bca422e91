"""Hints about other nodes, from gossip or the configuration; the metadata alone decides.

Part of the composition: `dlogd.node.cluster_node` makes one. Where the two differ is shown to
operators.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from dlog import version
from dlog.errors import ConfigError
from dlog.transport import Address
from dlog.types import NodeId
from dlogd.config.choices import MembershipKind
from dlogd.config.schema import Config
from dlogd.membership.members import (
    Disagreement,
    MalformedTagsError,
    Member,
    Membership,
    MemberState,
    Source,
    disagreements,
    encode_tags,
)
from dlogd.membership.serf import SerfMembership, SerfSettings
from dlogd.membership.static import StaticMembership
from dlogd.metadata.state.image import ClusterImage, NodeAddress
from dlogd.runtime.randomness import Rng

log = logging.getLogger(__name__)

INTERNAL = "internal"
"""The name of the listener for other nodes, in registrations and tags."""


class Gossip:
    """The members of one node's view. Owner: the loop's thread. Life: `start`, then `stop`."""

    def __init__(self, membership: Membership, config: Config) -> None:
        self.membership = membership
        self._config = config

    async def start(self, addresses: Sequence[NodeAddress]) -> None:
        """Make this node known and look who else is there; waits for nobody."""
        config = self._config
        try:
            self.membership.announce(
                encode_tags(
                    NodeId(config.node.id),
                    addresses,
                    cluster_id=config.cluster.id or "",
                    rack=config.node.rack,
                    version=version.VERSION,
                )
            )
        except MalformedTagsError as error:
            log.warning("Could not announce this node to Serf error=%s", error)
        await self.membership.start()

    async def stop(self) -> None:
        """Look no more; the agent keeps running."""
        await self.membership.stop()

    def disagreements(self, image: ClusterImage) -> tuple[Disagreement, ...]:
        """Return where gossip and metadata differ; nothing while gossip cannot be asked."""
        if self.membership.problem is not None:
            return ()
        return disagreements(self.membership.members(), image.nodes)


def make_gossip(
    config: Config,
    *,
    loop: asyncio.AbstractEventLoop,
    rng: Rng,
    serf_key: str | None,
) -> Gossip | None:
    """Return what `membership.kind` asks for; None for a static list of nobody."""
    settings = config.membership
    if settings.kind is MembershipKind.SERF:
        serf = SerfSettings(
            address=Address(config.serf.address.host, config.serf.address.port), auth_key=serf_key
        )
        return Gossip(SerfMembership(serf, loop=loop, rng=rng), config)
    if settings.peers is None:
        return None
    peers = [
        Member(
            node_id=NodeId(each.node_id),
            addresses=(
                NodeAddress(listener=INTERNAL, host=each.address.host, port=each.address.port),
            ),
            rack=None,
            version="",
            state=MemberState.UNCERTAIN,
            source=Source.CONFIG,
        )
        for each in settings.peers
    ]
    return Gossip(StaticMembership(peers), config)


def read_serf_key(config: Config, read: Callable[[str], bytes]) -> str | None:
    """Return the agent's key, None when it has none; raise ConfigError. Blocking."""
    path = config.serf.key_file
    if config.membership.kind is not MembershipKind.SERF or path is None:
        return None
    try:
        return read(path).decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"serf.key.file {path} is not text") from None
