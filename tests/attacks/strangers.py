"""What somebody without the cluster's secret says to a Raft port."""

from uuid import UUID

from dlogd.metadata.raft import handshake
from dlogd.metadata.raft.handshake import NONCE_BYTES, Hello


def hello(cluster_id: str) -> bytes:
    """Return a right hello; the cluster id is public."""
    body = handshake.encode_hello(
        Hello(
            cluster=cluster_id,
            node_id=77,
            directory_id=UUID(int=1),
            wanted_id=-1,
            nonce=bytes(NONCE_BYTES),
        )
    )
    return len(body).to_bytes(4, "big") + body
