"""FindCoordinator: nobody coordinates groups or transactions yet.

For groups the answer is "not available": clients that only ask in passing take that as "later" and
go on without. For transactions it is not: every client would ask again until its time-out, and
`init_transactions` tell of nothing else. TRANSACTIONAL_ID_AUTHORIZATION_FAILED is what all of them
(librdkafka, Java, kafka-python, aiokafka) report at once as final; for librdkafka no other code is.
Produce says the same of transactional batches.
"""

from dlog.errors import (
    CoordinatorNotAvailableError,
    InvalidRequestError,
    TransactionalIdAuthorizationFailedError,
    WireError,
)
from dlog.types import NO_NODE
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.response_builder import Fields

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
    if key_type == TRANSACTION:
        raise TransactionalIdAuthorizationFailedError("Transactions are not served yet")
    raise CoordinatorNotAvailableError("Groups are not served yet")


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error once before version 4, and per key from there on."""
    nowhere = {**error_fields(error), "node_id": NO_NODE, "host": "", "port": -1}
    if request.version < BATCH_SINCE_VERSION:
        return nowhere
    return {"coordinators": [{**nowhere, "key": key} for key in request.body.coordinator_keys]}


HANDLER = Handler(answer, refuse)
