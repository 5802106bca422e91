"""`dlogctl partition verify`: are all replicas of partitions the same, byte for byte?

Each node reads its own disk and tells checksums of ranges of offsets, over HTTP (`/digest`, where
`/status` is); they are compared here. Nothing is changed, and nothing is read fast.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any
from urllib.parse import urlencode

import click

from dlog.client.blocking import BlockingClient
from dlog.client.views import ClusterView, PartitionView
from dlog.errors import NONE, DlogError
from dlog.transport import Address
from dlogctl import exit_codes
from dlogctl.cluster.digests import Answer, Finding
from dlogctl.cluster.http_status import get_json, http_address
from dlogctl.cluster.partition_names import Partition, name_of, named
from dlogctl.cluster.replica_comparison import Comparison
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_count
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics

PIECE_TIMEOUT_S = 30.0
COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("NODE", "node", right=True),
    Column("FOUND", "what"),
    Column("FROM", "first_offset", right=True),
    Column("TO", "next_offset", right=True),
    Column("REASON", "reason"),
)


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl partition verify events", "All replicas of a topic."),
        ("dlogctl partition verify events-3 --from 100000", "One partition, from an offset on."),
    ),
)
@click.argument(
    "names", nargs=-1, required=True, metavar="TOPIC|PARTITION...", shell_complete=complete_topics
)
@click.option("--from", "first", type=click.IntRange(min=0), help="From this offset on.")
@click.option("--to", "end", type=click.IntRange(min=0), help="Up to this offset, exclusive.")
@common_options
@click.pass_context
def verify(
    context: click.Context, names: tuple[str, ...], first: int | None, end: int | None
) -> int:
    """Compare the replicas of partitions on their disks, by checksums of ranges of offsets.

    Only what all replicas in sync must have is compared: from the last log start to the least high
    watermark. The exit code is 10 when a replica differs, is damaged, behind or out of service, 2
    when a node could not be asked, or a partition was deleted meanwhile. What is damaged in a
    closed segment its node then mends by itself from another replica: look again before a repair.
    """
    if first is not None and end is not None and first >= end:
        raise click.UsageError(f"there is nothing from {first} up to {end}, exclusive", context)
    settings = settings_of(context)
    with connected(settings) as client:
        view = client.run(client.admin.describe_topics)
        wanted = named(view, names)
        checker = _Checker(client, settings, view)
        if first is not None:
            # Before anything is compared: that may take hours.
            beyond = client.run(lambda: checker.beyond(wanted, first))
            if beyond is not None:
                raise click.UsageError(beyond, context)
        rows: list[dict[str, Any]] = []
        gone: list[str] = []
        records = 0
        for key in wanted:
            check = client.run(lambda key=key: checker.check(key, first, end))  # type: ignore[misc]
            if check is None:
                gone.append(name_of(key))
                continue
            found, count = check
            records += count
            rows += [{"topic": key[0], "partition": key[1], **asdict(each)} for each in found]
    _report(settings, rows, (len(wanted) - len(gone), records), gone)
    if any(row["what"] != "unreachable" for row in rows):
        return exit_codes.UNHEALTHY
    return exit_codes.UNREACHABLE if rows or gone else exit_codes.OK


def _report(
    settings: Settings, rows: list[dict[str, Any]], compared: tuple[int, int], gone: list[str]
) -> None:
    """Say what was found, in how many partitions and offsets, and what could not be compared."""
    output = Output(settings)
    output.rows(rows, COLUMNS)
    if gone:
        # Rows are about replicas; whatever the format, nobody is to take these for compared.
        say(f"not compared, for deleted meanwhile: {', '.join(gone)}", err=True)
    partitions, records = compared
    if output.for_people and (partitions or not gone):
        said = "no differences" if not rows else format_count(len(rows), "finding")
        about = f"{format_count(partitions, 'partition')}, {records} offsets compared"
        say(f"{about}: {said}", err=True)
    if rows:
        settings.suggest("dlogctl partition repair PARTITION --node ID")


class _Checker:
    """Asks nodes for digests, piece by piece."""

    def __init__(self, client: BlockingClient, settings: Settings, view: ClusterView) -> None:
        self._client = client
        self._settings = settings
        self._view = view
        self._nodes = view.nodes
        self._addresses: dict[int, Address] = {}

    async def beyond(self, keys: Iterable[Partition], first: int) -> str | None:
        """Return what to say when a partition ends before `first`."""
        for key in keys:
            end = await self._comparison(key).end()
            if end is not None and first > end:
                return (
                    f"--from {first} lies beyond the end of {name_of(key)}, which is {end}: take"
                    f" {end} at most, or name only partitions that reach so far"
                )
        return None

    async def check(
        self, key: Partition, first: int | None, end: int | None
    ) -> tuple[list[Finding], int] | None:
        """Return what is wrong with a partition, and how many offsets were compared.

        None: it was deleted meanwhile.
        """
        comparison = self._comparison(key)
        found = await comparison.run(first, end)
        return None if comparison.is_gone else (found, comparison.compared)

    def _comparison(self, key: Partition) -> Comparison:
        topic_id = self._view.topics[key[0]].topic_id

        async def state() -> PartitionView | None:
            view = await self._client.admin.describe_topics([key[0]])
            self._nodes = view.nodes
            topic = view.topics.get(key[0])
            # One made anew meanwhile is another topic.
            is_there = topic is not None and topic.error_code == NONE and topic.topic_id == topic_id
            return topic.partitions[key[1]] if topic is not None and is_there else None

        return Comparison(partial(self._ask, key), state, partial(self._tell, key))

    def _tell(self, key: Partition, done: int, count: int) -> None:
        if Output(self._settings).for_people:
            say(f"{name_of(key)}: {done} of {count} offsets", err=True)

    async def _ask(self, key: Partition, node: int, query: Mapping[str, Any]) -> Answer | Finding:
        words = {"topic": key[0], "partition": key[1], **query}
        try:
            address = await self._address(node)
            return await get_json(address, f"/digest?{urlencode(words)}", PIECE_TIMEOUT_S)
        except DlogError as error:
            return Finding(node=node, what="unreachable", reason=f"{name_of(key)}: {error}")

    async def _address(self, node: int) -> Address:
        if node not in self._addresses:
            known = self._nodes.get(node)
            if known is None:
                raise DlogError(f"node {node} is down")
            self._addresses[node] = await http_address(self._client, known)
        return self._addresses[node]
