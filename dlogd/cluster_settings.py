"""What the configuration of a node means for its cluster: its secret, who keeps the metadata.

Part of the composition: `dlogd.clustering` and `dlogd.__main__` call it.
"""

import logging
import os.path
from collections.abc import Callable

from dlog.errors import ConfigError
from dlogd.cluster_timings import problems, raft_timings
from dlogd.config.schema import Config
from dlogd.metadata.raft.handshake import SECRET_BYTES_MIN
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.storage.files import Directory

log = logging.getLogger(__name__)

SECRET_BYTES_MAX = 4096
NOT_ITS_OWNER = 0o077


def read_key(path: str, open_directory: Callable[[str], Directory], key: str) -> bytes:
    """Return what a file holds that is secret, by its key; raise ConfigError. Blocking.

    Other users who may read it, or write to it, are a warning: what for is not known here.
    """
    folder, name = os.path.split(os.path.abspath(path))
    try:
        directory = open_directory(folder)
        file = directory.open(name, read_only=True)
        try:
            content = file.pread(min(file.size(), SECRET_BYTES_MAX), 0).strip()
        finally:
            file.close()
        mode = directory.mode(name)
    except OSError as error:
        raise ConfigError(f"{key} {path} cannot be read: {error}") from error
    if mode & NOT_ITS_OWNER:
        log.warning(
            "A secret is open to other users key=%s path=%s mode=%04o cure='chmod 600 %s, as a file"
            " of the user that runs the daemon'",
            key,
            path,
            mode,
            path,
        )
    return content


def read_secret(path: str, open_directory: Callable[[str], Directory]) -> bytes:
    """Return the cluster's secret; raise ConfigError. Blocking."""
    secret = read_key(path, open_directory, "cluster.secret.file")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"cluster.secret.file {path} has less than {SECRET_BYTES_MIN} bytes")
    return secret


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
