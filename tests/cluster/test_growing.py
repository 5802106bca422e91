"""From one node to three: what a node kept alone is taken over, and nothing is lost on the way."""

import asyncio
from pathlib import Path

from dlog.client.blocking import Admin, Consumer, Producer
from dlogctl.exit_codes import OK
from tests.cluster.nodes import Cluster, Node
from tests.cluster.running import dlogctl, run

ALONE = {"controllers": "null", "metadata.listener": "null", "internal.listener": "null"}
TOPIC = "t"
RECORDS = 200


def write(node: Node, start: int) -> None:
    with Producer(node.client_address) as producer:
        for number in range(start, start + RECORDS):
            producer.send(TOPIC, b"%d" % number)
        producer.flush()


def read(node: Node, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(node.client_address, TOPIC, start="earliest") as consumer:
        while len(found) < count:
            found += [each.value for each in consumer.poll(timeout_ms=1000)]
    return found


def create(node: Node) -> None:
    with Admin(node.client_address) as admin:
        admin.create_topic(TOPIC)


async def operate(node: Node, line: str) -> None:
    code, said = await dlogctl(*line.split(), "--bootstrap", node.client_address, patience_s=60)
    assert code == OK, said


def test_a_node_alone_becomes_one_of_three(tmp_path: Path) -> None:
    wanted = [b"%d" % number for number in range(2 * RECORDS)]

    async def work() -> None:
        cluster = Cluster(tmp_path, 3, voters=1)
        first, second, third = cluster.nodes
        try:
            first.write_config({**cluster.overrides, **ALONE})
            await first.start()
            await cluster.until(lambda found: found[0]["state"] == "active", [first])
            await asyncio.to_thread(create, first)
            await asyncio.to_thread(write, first, 0)
            assert await first.stop() == 0

            first.write_config(cluster.overrides_of(first))
            await first.start()
            await cluster.until_well([first])
            assert first.said("Took over metadata of a node alone .* topics=1")
            assert await asyncio.to_thread(read, first, RECORDS) == wanted[:RECORDS]

            await cluster.start([second, third])
            for node in (second, third):
                address = f"{node.host}:{node.raft_port}"
                await operate(first, f"controller add {node.node_id} --address {address}")
            await operate(first, f"partition reassign {TOPIC}-0=2,3,1 --wait")
            await asyncio.to_thread(write, first, RECORDS)
            await cluster.until_equal()

            await first.kill()
            await cluster.until_well([second, third])
            assert await asyncio.to_thread(read, second, 2 * RECORDS) == wanted
            await first.start()
            await cluster.until_well()
        finally:
            for node in cluster.nodes:
                await node.kill()

    run(work)
