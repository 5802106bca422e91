"""The operators' pages: /livez, /readyz, /status, /metadata, /digest and /metrics.

What the node says about itself comes through `NodeView`; nothing is computed here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dlogd.status.http_heads import HttpError, Page, Request, Response, text_response
from dlogd.status.scrapes import RunBlocking, Scrapes
from dlogd.telemetry.metrics import Source, Telemetry

ACTIVE = "active"
"""The state of a node that serves clients, as operators read it everywhere."""


class NodeView(Protocol):
    """What the pages ask of a node; all of it is answered in every state, from start to stop."""

    @property
    def telemetry(self) -> Telemetry:
        """The node's counters."""

    def metric_sources(self) -> Sequence[Source]:
        """Return what samples gauges at scrape time."""

    def not_ready_reason(self) -> str | None:
        """Say in one line why the node does not serve clients, None when it does."""

    def status(self) -> Mapping[str, Any]:
        """Return the content of /status: only what JSON has."""

    def metadata(self) -> Callable[[], Mapping[str, Any]]:
        """Return what computes the content of /metadata, from any thread."""

    async def digest(self, query: str) -> Mapping[str, Any]:
        """Return the content of /digest; raise HttpError."""


def scrapes_of(
    node: NodeView,
    run_blocking: RunBlocking,
    before_scrape: Callable[[], None],
    sources: Sequence[Source] = (),
) -> Scrapes:
    """Return what answers /metrics of a node and of `sources`.

    `before_scrape` may bring gauges up to date.
    """

    def collect(module: Any) -> Any:
        before_scrape()
        return module.TelemetryCollector(node.telemetry, [*node.metric_sources(), *sources])

    return Scrapes(collect, run_blocking)


def pages_of(node: NodeView, run_blocking: RunBlocking, scrapes: Scrapes) -> dict[str, Page]:
    """Return the pages of a node by path."""

    async def livez(_request: Request) -> Response:
        # That this code runs is the answer.
        return text_response(200, "live")

    async def readyz(_request: Request) -> Response:
        reason = node.not_ready_reason()
        return text_response(200, "ready") if reason is None else text_response(503, reason)

    async def status(_request: Request) -> Response:
        body = json.dumps(node.status(), indent=2).encode() + b"\n"
        return Response(body=body, content_type="application/json")

    async def metadata(_request: Request) -> Response:
        # Encodes the whole image: not on the loop.
        found = await run_blocking(node.metadata())
        body = json.dumps(found, indent=2).encode() + b"\n"
        return Response(body=body, content_type="application/json")

    async def digest(request: Request) -> Response:
        try:
            found = await node.digest(request.query)
        except HttpError as error:
            return text_response(error.status, str(error))
        body = json.dumps(found).encode() + b"\n"
        return Response(body=body, content_type="application/json")

    return {
        "/livez": livez,
        "/readyz": readyz,
        "/status": status,
        "/metadata": metadata,
        "/digest": digest,
        "/metrics": scrapes.page,
    }
