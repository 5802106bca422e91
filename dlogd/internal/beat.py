"""Content of a heartbeat, as a value. Pure."""

from dataclasses import dataclass

from dlog.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a node tells in a heartbeat."""

    node_id: NodeId
    node_epoch: int
    image_version: int
    surrenders: bool = False  # it acts no more under its lease
    wants_shutdown: bool = False  # leaders should move away first
