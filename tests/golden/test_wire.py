"""Golden bytes of frames, Produce and Fetch (docs/formats/frame.md, produce.md, fetch.md)."""

from datetime import timedelta

from dlog.wire import fetch, fetch_client, messages, produce, produce_client
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import FetchedPartition, FetchRequest
from dlog.wire.frame import parse_request_header, parse_response_header
from tests.golden.documents import examples

RECORDS = b"<records>"


def test_frame() -> None:
    request, response = examples("frame.md")
    key = ApiKey.INIT_PRODUCER_ID
    entity = messages.request_type(key, 4)(
        transactional_id=None, transaction_timeout=timedelta(milliseconds=2**31 - 1)
    )
    assert messages.encode_request(entity, 9, "demo") == request
    view = memoryview(request)[4:]
    header = parse_request_header(view, 0, len(view))
    assert tuple(header) == (key, 4, 9, "demo", 15)
    assert messages.parse_request(key, 4, view, header.body_position) == entity
    module = messages.module_of(key, 4, "response")
    answer = module.InitProducerIdResponse(
        throttle_time=timedelta(0),
        error_code=module.ErrorCode.none,
        producer_id=1001,
        producer_epoch=0,
    )
    assert messages.encode_response(answer, 9) == response
    assert messages.parse_response(key, 4, memoryview(response)[4:]) == answer


def test_produce() -> None:
    request, response, request_8 = examples("produce.md")
    topics = [("flights", [(2, RECORDS)])]
    assert produce_client.encode_request(9, 5, "demo", -1, 30_000, topics) == request
    assert produce_client.encode_request(8, 5, "demo", -1, 30_000, topics) == request_8
    for version, frame in ((9, request), (8, request_8)):
        view = memoryview(frame)
        position = parse_request_header(view, 4, len(view)).body_position
        found = produce.parse_request(view, position, len(view), version)
        ((name, ((partition, start, end),)),) = found.topics
        assert (name, partition, bytes(view[start:end])) == ("flights", 2, RECORDS)
    assert produce.encode_single(9, 5, "flights", 2, 0, 1000, -1, 0) == response
    view = memoryview(response)
    _, position = parse_response_header(view, 4, len(view), ApiKey.PRODUCE, 9)
    answer = produce_client.parse_response(view, position, len(view), 9)
    assert answer.topics == [("flights", [(2, 0, 1000, -1, 0, None)])]


def test_fetch() -> None:
    request, response = examples("fetch.md")
    partition = (2, 3, 1000, -1, -1, 1 << 20)
    wanted = FetchRequest(-1, 500, 1, 50 << 20, 0, 0, -1, [("flights", [partition])], [], "")
    assert fetch_client.encode_request(12, 6, "demo", wanted) == request
    view = memoryview(request)
    position = parse_request_header(view, 4, len(view)).body_position
    assert fetch.parse_request(view, position, len(view), 12) == wanted
    fetched = FetchedPartition(2, 0, 1002, 1002, 0, len(RECORDS))
    pieces = fetch.encode_response_parts(12, 6, 0, 0, 0, [("flights", [fetched])])
    assert b"".join(RECORDS if isinstance(p, int) else p for p in pieces) == response
    view = memoryview(response)
    _, position = parse_response_header(view, 4, len(view), ApiKey.FETCH, 12)
    answer = fetch_client.parse_response(view, position, len(view), 12)
    ((name, ((found, start),)),) = answer.topics
    assert (name, found, bytes(view[start : start + 9])) == ("flights", fetched, RECORDS)
