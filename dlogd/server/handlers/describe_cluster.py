"""DescribeCluster: who is in the cluster (KIP-700, KIP-919, KIP-1073)."""

from dlog.errors import WireError, error_for
from dlog.types import NO_NODE
from dlogd.server.context import ServerContext
from dlogd.server.handlers import topology
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.response_builder import Fields

BROKERS, CONTROLLERS = 1, 2
_MISMATCHED_ENDPOINT_TYPE, _UNSUPPORTED_ENDPOINT_TYPE = 114, 115


def answer(context: ServerContext, request: Request) -> Fields:
    """List the nodes that clients can reach, fenced ones too where the client wants them."""
    endpoint_type = request.get("endpoint_type", BROKERS)
    if endpoint_type == CONTROLLERS:
        raise error_for(_MISMATCHED_ENDPOINT_TYPE, "This listener serves clients, not controllers")
    if endpoint_type != BROKERS:
        raise error_for(_UNSUPPORTED_ENDPOINT_TYPE, f"Endpoint type {endpoint_type} is unknown")
    image = context.image()
    with_fenced = request.get("include_fenced_brokers", False)
    brokers: list[Fields] = []
    for node in image.nodes.values():
        address = topology.address_of(node, request.session.listener)
        if address is not None and (with_fenced or not node.fenced):
            brokers.append(
                {
                    "broker_id": node.node_id,
                    "host": address.host,
                    "port": address.port,
                    "rack": node.rack,
                    "is_fenced": node.fenced,
                }
            )
    asked = request.body.include_cluster_authorized_operations
    return {
        **error_fields(None),
        "endpoint_type": endpoint_type,
        "cluster_id": image.cluster_id,
        "controller_id": topology.controller_id(image, context.node_id),
        "brokers": brokers,
        "cluster_authorized_operations": (
            topology.CLUSTER_OPERATIONS if asked else topology.OPERATIONS_UNKNOWN
        ),
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error at the top."""
    return {
        **error_fields(error),
        "endpoint_type": request.get("endpoint_type", BROKERS),
        "cluster_id": "",
        "controller_id": NO_NODE,
        "cluster_authorized_operations": topology.OPERATIONS_UNKNOWN,
    }


HANDLER = Handler(answer, refuse)
