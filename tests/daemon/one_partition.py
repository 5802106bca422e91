"""Records of partition 0 of a topic, one by one and all at once, by a blocking client."""

from dlog.batch.records import Record, decode, encode
from dlog.client.blocking import BlockingClient
from dlog.client.cluster.partition_calls import fetch, produce


def append(client: BlockingClient, value: bytes) -> int:
    """Append one record to `t`; return its offset."""

    async def work() -> int:
        leader = await client.cluster.leader("t", 0)
        record = Record(key=None, value=value, headers=(), timestamp_ms=1, offset=0)
        produced = await produce(leader, "t", 0, encode([record]))
        assert produced is not None
        return produced.base_offset

    return client.run(work)


def read_all(client: BlockingClient, topic: str = "t") -> list[bytes | None]:
    """Return all values of a topic, from offset 0 on."""

    async def work() -> list[bytes | None]:
        leader = await client.cluster.leader(topic, 0)
        found: list[bytes | None] = []
        while True:
            fetched = await fetch(leader, topic, 0, len(found), max_wait_ms=0)
            position = 0
            while position < len(fetched.records):
                batch = decode(fetched.records, position)
                position += 12 + int.from_bytes(
                    fetched.records[position + 8 : position + 12], "big"
                )
                found += [record.value for record in batch]
            if len(found) >= fetched.high_watermark:
                return found

    return client.run(work)
