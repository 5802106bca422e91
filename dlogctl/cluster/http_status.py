"""Client for /status of a node: one GET on the client's own event loop.

The node tells its address in its configuration, unless the user says one.
"""

import asyncio
import json
import os
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dlog.client.admin import Resource
from dlog.client.admin_views import NodeState
from dlog.client.blocking import BlockingClient
from dlog.client.views import NodeView
from dlog.errors import ConnectFailedError, DlogError, ProtocolError, TransportError
from dlog.transport import Address
from dlogctl.cluster.moves import NO_LIMIT, RATES
from dlogctl.settings import Settings

ANSWER_BYTES_MAX = 16 * 1024 * 1024
HTTP_ADDRESS = "http.address"
PATIENCE_S = 3.0
"""For a node beside others."""
WILDCARDS = ("0.0.0.0", "::", "")


async def get_status(address: Address, timeout_s: float) -> dict[str, Any]:
    """Return the node's /status; raise ConnectFailedError or ProtocolError."""
    return await get_json(address, "/status", timeout_s)


async def get_json(address: Address, target: str, timeout_s: float) -> dict[str, Any]:
    """Return what a page of a node says; raise ConnectFailedError or ProtocolError."""
    page = f"http://{address}{target.partition('?')[0]}"
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _get(address, target)
    except OSError as error:
        raise ConnectFailedError(f"no answer from {page}: {_why(error)}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ")
    try:
        if words[1] != b"200":
            said = body[:200].decode(errors="replace").strip()
            raise ProtocolError(f"{page} answers {words[1].decode()}: {said}")
        found = json.loads(body)
    except (ValueError, IndexError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError(f"the server at {page} is not dlogd")
    return found


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "time-out"
    # Not asyncio's own words, which repeat the address.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


async def _get(address: Address, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < ANSWER_BYTES_MAX and (piece := await reader.read(1 << 16)):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        writer.close()


async def node_configs(client: BlockingClient, node: NodeView, keys: list[str]) -> dict[str, str]:
    """Return some keys of a node's own configuration; what is not set is left out."""
    entries = await client.admin.describe_configs(Resource.BROKER, str(node.node_id))
    return {each.name: each.value for each in entries if each.name in keys and each.value}


async def http_address(client: BlockingClient, node: NodeView) -> Address:
    """Ask the node where its HTTP endpoint is."""
    return _http_address(node, await node_configs(client, node, [HTTP_ADDRESS]))


def _http_address(node: NodeView, configs: Mapping[str, str]) -> Address:
    value = configs.get(HTTP_ADDRESS)
    if not value:
        raise DlogError("it reports no http.address")
    try:
        address = Address.parse(value)
    except ValueError as error:
        raise DlogError(f"its http.address: {error}") from error
    return Address(node.address.host, address.port) if address.host in WILDCARDS else address


class Asked(NamedTuple):
    """What became of asking a node about itself."""

    http: str = ""
    """Its HTTP address, empty when it could not be found out."""
    status: dict[str, Any] | None = None
    note: str = ""
    """Why there is no status."""
    is_reachable: bool = True
    """Whether it answers clients."""
    throttles: Mapping[str, int] = MappingProxyType({})
    """What throttles its replication: config and bytes per second, those that are set."""


async def ask_node(
    client: BlockingClient, settings: Settings, node: NodeView, *, alone: bool
) -> Asked:
    """Ask a node for its status; `alone`: an address that the user says is that node's."""
    address: Address | None = settings.http if alone else None
    throttles: Mapping[str, int] = {}
    try:
        if address is None:
            configs = await node_configs(client, node, [HTTP_ADDRESS, *RATES])
            throttles = _throttles(configs)
            address = _http_address(node, configs)
    except TransportError as error:
        note = f"node {node.node_id} does not answer: {error}"
        return Asked(note=note, is_reachable=False)
    except DlogError as error:
        note = f"node {node.node_id} reports no details: {error}"
        return Asked(note=note, throttles=throttles)
    try:
        status = await get_status(address, settings.timeout_s)
    except DlogError as error:
        note = f"node {node.node_id} reports no details: {error}"
        return Asked(str(address), note=note, throttles=throttles)
    return Asked(str(address), status, throttles=throttles)


async def ask_all(
    client: BlockingClient, settings: Settings, nodes: Collection[NodeState]
) -> dict[int, Asked]:
    """Ask nodes for their status side by side; one that hangs does not hold up the others' answers.

    Those that are fenced are asked as well: they may be on their way back.
    """

    async def ask(state: NodeState) -> Asked:
        view = NodeView(node_id=state.node_id, address=state.address, rack=state.rack)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await ask_node(client, settings, view, alone=len(nodes) == 1)
        except TimeoutError:
            note = f"node {state.node_id} does not answer within {PATIENCE_S:g} s"
            return Asked(note=note, is_reachable=False)

    answers = await asyncio.gather(*map(ask, nodes))
    return {each.node_id: asked for each, asked in zip(nodes, answers, strict=True)}


def _throttles(configs: Mapping[str, str]) -> dict[str, int]:
    rates = {name: int(configs[name]) for name in RATES if configs.get(name, "").isdecimal()}
    return {name: rate for name, rate in rates.items() if rate < NO_LIMIT}
