"""ListConfigResources (KIP-1142): which resources have configs that DescribeConfigs describes.

Version 0 is the former ListClientMetricsResources, and there are no client metrics.
"""

from collections.abc import Generator

from dlog.errors import UnsupportedVersionError, WireError
from dlogd.server.context import ServerContext
from dlogd.server.handlers import topology
from dlogd.server.handlers.config_resources import ResourceType
from dlogd.server.request import Handler, Pieces, Request, error_fields
from dlogd.server.response_builder import Fields


def answer(context: ServerContext, request: Request) -> Pieces:
    """List topics and nodes, those of the types asked for; no type: of all."""
    asked = request.get("resource_types", (ResourceType.CLIENT_METRICS,)) or tuple(ResourceType)
    unknown = [each for each in asked if each not in tuple(ResourceType)]
    if unknown:
        raise UnsupportedVersionError(f"Unsupported resource types: {unknown}")
    found: list[Fields] = []
    for each in dict.fromkeys(asked):
        yield from _add(context, ResourceType(each), found)
    return {"error_code": 0, "config_resources": found}


def _add(
    context: ServerContext, kind: ResourceType, found: list[Fields]
) -> Generator[None, None, None]:
    image = context.image()
    names: list[str] = []
    if kind is ResourceType.TOPIC:
        names = list(image.topics)
    elif kind is ResourceType.BROKER:
        names = [str(node_id) for node_id in image.nodes if topology.is_alive(image, node_id)]
    for name in names:
        found.append({"resource_name": name, "resource_type": int(kind)})
        yield


def refuse(_request: Request, error: WireError) -> Fields:
    """Carry the error at the top."""
    return {"error_code": error_fields(error)["error_code"], "config_resources": ()}


HANDLER = Handler(answer, refuse)
