"""Every message but the hot ones: whole frames to and from kio's dataclasses.

kio has a module per message and version; each is imported when it is first needed, for all of them
together cost seconds and more than 100 MB. The bytes are read and written by `dlog.wire.decoders`
and `dlog.wire.encoders`. What a peer sends is answered by ProtocolError and nothing else, whatever
it holds. Names and ids of topics, sizes, times are not judged here.

`request_type` and `response_type` give the classes; nested ones stand beside them in `module_of`.
"""

import importlib
import sys
from collections.abc import Generator
from functools import cache
from types import ModuleType
from typing import Any

from dlog.errors import ProtocolError
from dlog.wire.apis import ApiKey, is_flexible
from dlog.wire.decoders import decoder, piecewise_decoder
from dlog.wire.encoders import encoder
from dlog.wire.frame import (
    encode_frame,
    encode_request_header,
    parse_response_header,
)
from dlog.wire.frame import encode_response as encode_response_frame
from dlog.wire.reader import ENTRIES_MAX, Reader

RESPONSE_ENTRIES_MAX = 20 * ENTRIES_MAX
"""Array entries in one response: a cluster may be large, and a server is trusted more."""


@cache
def _import_base() -> None:
    """Import what all of kio's modules need, but not hypothesis.

    Where that is installed kio loads it, for strategies that nothing here asks for: half a second
    of each process that Spark starts for a query.
    """
    is_hidden = "hypothesis" not in sys.modules
    if is_hidden:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        if is_hidden:
            del sys.modules["hypothesis"]


@cache
def module_of(api_key: int, api_version: int, part: str) -> ModuleType:
    """Import kio's module of a message; `part` is "request" or "response".

    Raises ProtocolError when there is no such message or version.
    """
    try:
        name = ApiKey(api_key).name.lower()
        if (api_key, api_version) == (ApiKey.LIST_OFFSETS, 0):
            return importlib.import_module("dlog.wire.list_offsets_v0")
        _import_base()
        return importlib.import_module(f"kio.schema.{name}.v{api_version}.{part}")
    except (ValueError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("kio.schema."):
            raise  # it is not the message that is missing, but kio
        raise ProtocolError(f"no {part} with key {api_key} and version {api_version}") from None


@cache
def _type_of(api_key: int, api_version: int, part: str) -> Any:
    module = module_of(api_key, api_version, part)
    name = ApiKey(api_key).name.title().replace("_", "") + part.title()
    return getattr(module, name)


def request_type(api_key: int, api_version: int) -> Any:
    """Return kio's class of a request."""
    return _type_of(api_key, api_version, "request")


def response_type(api_key: int, api_version: int) -> Any:
    """Return kio's class of a response."""
    return _type_of(api_key, api_version, "response")


def parse_request(
    api_key: int, api_version: int, buffer: memoryview, position: int, end: int | None = None
) -> Any:
    """Read the body of a request in [position, end); raises ProtocolError."""
    decode = decoder(request_type(api_key, api_version))
    # What follows the message is ignored, as Kafka does: librdkafka leaves three bytes behind the
    # null array of a Metadata request for all topics (confluentinc/librdkafka#5049).
    return decode(_request_reader(api_key, api_version, buffer, position, end))


def parse_request_in_pieces(
    api_key: int, api_version: int, buffer: memoryview, position: int
) -> Generator[None, None, Any]:
    """Do as `parse_request`, as a generator that yields behind each entry of an array."""
    decode = piecewise_decoder(request_type(api_key, api_version))
    return decode(_request_reader(api_key, api_version, buffer, position, None))


def _request_reader(
    api_key: int, api_version: int, buffer: memoryview, position: int, end: int | None
) -> Reader:
    return Reader(
        buffer,
        position,
        len(buffer) if end is None else end,
        flexible=is_flexible(api_key, api_version),
    )


def encode_response(entity: Any, correlation_id: int) -> bytes:
    """Return the whole response frame, with the header that its version has."""
    body = bytearray()
    encoder(entity.__class__)(body, entity)
    return encode_response_frame(entity.__api_key__, entity.__version__, correlation_id, body)


def encode_request(entity: Any, correlation_id: int, client_id: str | None) -> bytes:
    """Return the whole request frame."""
    body = bytearray()
    encoder(entity.__class__)(body, entity)
    header = encode_request_header(
        entity.__api_key__, entity.__version__, correlation_id, client_id
    )
    return encode_frame(header, body)


def parse_response(api_key: int, api_version: int, buffer: memoryview) -> Any:
    """Read a response: header and body, without the frame's length; raises ProtocolError."""
    _, position = parse_response_header(buffer, 0, len(buffer), api_key, api_version)
    return parse_response_body(api_key, api_version, buffer, position)


def parse_response_body(
    api_key: int, api_version: int, buffer: memoryview, position: int = 0
) -> Any:
    """Read the body of a response, which is all from `position` on; raises ProtocolError."""
    decode = decoder(response_type(api_key, api_version))
    reader = Reader(
        buffer,
        position,
        len(buffer),
        flexible=is_flexible(api_key, api_version),
        entries_max=RESPONSE_ENTRIES_MAX,
    )
    response = decode(reader)
    reader.finish()
    return response
