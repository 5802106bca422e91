"""DescribeAcls, CreateAcls, DeleteAcls: nothing restricts access yet, and each answer says so.

SECURITY_DISABLED is what Kafka answers without an authorizer. Tools take it for "no ACLs here";
for an absent request type they take the broker for an old one.
"""

from dlog.errors import WireError, error_for
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.response_builder import Fields

_SECURITY_DISABLED = 54


def answer(_context: ServerContext, _request: Request) -> Fields:
    """Refuse every request: there are no ACLs."""
    raise error_for(_SECURITY_DISABLED, "This broker has no authorizer: it restricts no access")


def refuse_describe(_request: Request, error: WireError) -> Fields:
    """Carry the error at the top."""
    return {**error_fields(error), "resources": ()}


def refuse_create(request: Request, error: WireError) -> Fields:
    """Carry the error for each ACL."""
    return {"results": [error_fields(error)] * len(request.body.creations)}


def refuse_delete(request: Request, error: WireError) -> Fields:
    """Carry the error for each filter."""
    refused = {**error_fields(error), "matching_acls": ()}
    return {"filter_results": [refused] * len(request.body.filters)}


DESCRIBE_HANDLER = Handler(answer, refuse_describe)
CREATE_HANDLER = Handler(answer, refuse_create)
DELETE_HANDLER = Handler(answer, refuse_delete)
