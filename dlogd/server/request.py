"""Request and answer, as handlers and dispatch exchange them.

A handler is two functions: `answer` does what was asked, `refuse` says how a response of this API
carries an error that concerns the whole request. Neither knows bytes, versions of entities or
connections. The table of all handlers is in `dlogd.server.dispatch`.
"""

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import NONE, WireError
from dlog.wire.apis import ApiKey
from dlogd.server.context import ServerContext
from dlogd.server.response_builder import Entity, Fields
from dlogd.server.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One decoded request."""

    api_key: ApiKey
    version: int
    body: Entity
    session: Session = field(default_factory=Session)
    client_id: str = ""

    def get(self, name: str, default: Any) -> Any:
        """Return a field of the body, or `default` where this version does not have it."""
        return getattr(self.body, name, default)


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """The body of a response that the handler has encoded itself, without frame and header."""

    body: bytes


Answer = Fields | EncodedBody

Pieces = Generator[None, None, Answer]
"""An answer in the making: yields behind each entry, where others may get their turn."""


@dataclass(frozen=True, slots=True)
class Handler:
    """How requests of one API are answered."""

    answer: Callable[[ServerContext, Request], Answer | Pieces | Awaitable[Answer]]
    refuse: Callable[[Request, WireError], Fields]


def error_fields(error: WireError | None) -> dict[str, Any]:
    """Return the two fields by which most parts of responses carry their error, or success."""
    if error is None:
        return {"error_code": NONE, "error_message": None}
    return {"error_code": error.code, "error_message": str(error)}
