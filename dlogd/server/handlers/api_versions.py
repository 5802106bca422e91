"""ApiVersions: which requests this node serves, in which versions (KIP-35, KIP-511)."""

import re

from dlog.errors import InvalidRequestError, UnsupportedVersionError, WireError
from dlog.wire import apis
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request
from dlogd.server.response_builder import Fields

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answer(context: ServerContext, request: Request) -> Fields:
    """List what is served; from version 3 on clients must say who they are."""
    if request.version >= 3:
        for name in (request.body.client_software_name, request.body.client_software_version):
            if SOFTWARE_NAME.fullmatch(name) is None:
                raise InvalidRequestError(f"{name!r} is no name or version of a client")
    return {"api_keys": _everything()}


def refuse(request: Request, error: WireError) -> Fields:
    """Answer with the error; who asks in an unknown version hears which versions there are."""
    if not isinstance(error, UnsupportedVersionError):
        return {"error_code": error.code}
    return {"error_code": error.code, "api_keys": _everything()}


def _everything() -> list[Fields]:
    return [
        {"api_key": api_key, "min_version": low, "max_version": high}
        for api_key, low, high in apis.advertised()
    ]


HANDLER = Handler(answer, refuse)
