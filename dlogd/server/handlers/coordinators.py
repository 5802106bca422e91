"""FindCoordinator: nobody coordinates groups or transactions yet.

Clients that only ask in passing take "not available" as "later" and go on without.
"""

from dlog.errors import CoordinatorNotAvailableError, InvalidRequestError, WireError
from dlog.types import NO_NODE
from dlogd.server.context import ServerContext
from dlogd.server.entities import Fields
from dlogd.server.exchange import Handler, Request, error_fields

GROUP, TRANSACTION, SHARE = 0, 1, 2
SHARE_SINCE_VERSION = 6
BATCH_SINCE_VERSION = 4


def answer(context: ServerContext, request: Request) -> Fields:
    """Answer that there is no coordinator, for every key."""
    key_type = request.get("key_type", GROUP)
    if key_type not in (GROUP, TRANSACTION, SHARE):
        raise InvalidRequestError(f"Coordinators of type {key_type} do not exist")
    if key_type == SHARE and request.version < SHARE_SINCE_VERSION:
        raise InvalidRequestError("Share coordinators are known from version 6 on")
    raise CoordinatorNotAvailableError("Groups and transactions are not served yet")


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error once before version 4, and per key from there on."""
    nowhere = {**error_fields(error), "node_id": NO_NODE, "host": "", "port": -1}
    if request.version < BATCH_SINCE_VERSION:
        return nowhere
    return {"coordinators": [{**nowhere, "key": key} for key in request.body.coordinator_keys]}


HANDLER = Handler(answer, refuse)
