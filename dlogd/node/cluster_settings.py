"""Settings of a node for its cluster: the voters of the metadata.

Part of the composition: `dlogd.node.cluster_node` calls it.
"""

from dlog.errors import ConfigError
from dlogd.config.schema import Config
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.node.cluster_timings import problems, raft_timings


def raft_config(config: Config, secret: bytes) -> RaftConfig:
    """Return who this node is among those that keep the metadata; raise ConfigError."""
    assert config.controllers is not None and config.cluster.id is not None
    wrong = problems(config)
    if wrong:
        raise ConfigError(wrong)
    own = config.metadata.listener
    if own is None:
        own = next(e.address for e in config.controllers if e.node_id == config.node.id)
    voters = Voters.of(
        Voter(node_id=each.node_id, host=each.address.host, port=each.address.port)
        for each in config.controllers
    )
    return RaftConfig(
        node_id=config.node.id,
        cluster=config.cluster.id,
        secret=secret,
        controllers=voters,
        host=own.host,
        port=own.port,
        timings=raft_timings(config),
    )
