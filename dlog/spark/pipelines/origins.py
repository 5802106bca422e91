"""Facts about a cluster that pipelines need: topics, ids, beginnings and ends of partitions.

On the driver, with the blocking clients; each call opens its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from dlog.client.admin_views import Resource
from dlog.client.blocking import Admin, Consumer
from dlog.client.retry import RetryPolicy
from dlog.client.views import ClusterView, TopicView
from dlog.errors import NONE, DlogError, UnknownTopicOrPartitionError, error_for
from dlog.spark.errors import SparkSourceError
from dlog.spark.pipelines.archives.resumption import Origin, PartitionBounds
from dlog.spark.reading.lookup import lookup_failed
from dlog.spark.settings import ClientSettings
from dlog.types import PartitionId, TopicPartition


def _policy(settings: ClientSettings) -> RetryPolicy:
    return RetryPolicy(deadline_s=settings.deadline_s)


@contextmanager
def _asking(settings: ClientSettings, what: str) -> Iterator[None]:
    """Raise SparkSourceError, which names the cluster, for what its clients raise."""
    try:
        yield
    except SparkSourceError:
        raise
    except DlogError as error:
        raise lookup_failed(settings, what, error) from error


def find_origin(settings: ClientSettings, topics: Sequence[str]) -> Origin:
    """Return what the cluster has of these topics now.

    Raises SparkSourceError when there is no such topic, or the cluster does not say.
    """
    view = _described(settings, topics)
    found = [_checked(view.topics.get(name), name, settings) for name in topics]
    wanted = [
        TopicPartition(topic.name, PartitionId(each.partition))
        for topic in found
        for each in topic.partitions
    ]
    bounds = find_bounds(settings, wanted)
    return Origin(
        cluster_id=view.cluster_id or "",
        topic_ids={topic.name: str(topic.topic_id) for topic in found},
        partitions=bounds,
    )


def find_again(settings: ClientSettings, origin: Origin) -> Origin:
    """Return which topics have these names now; without bounds, and without those that are gone."""
    view = _described(settings, origin.topic_ids)
    topic_ids = {topic.name: str(topic.topic_id) for topic in view.topics.values()}
    return Origin(cluster_id=view.cluster_id or "", topic_ids=topic_ids, partitions=())


def find_compacted(settings: ClientSettings, topics: Iterable[str]) -> dict[str, bool]:
    """Return of each topic whether it is compacted: then offsets without a record are no loss.

    Of a topic that is gone, or whose configuration nobody may see, that is not known: False.
    """
    return {
        topic: "compact" in (value or "")
        for topic, value in _configs(settings, topics, "cleanup.policy").items()
    }


def find_stamped(settings: ClientSettings, topic: str) -> bool:
    """Return whether records of a topic have their leader's times, or that is not known."""
    return _configs(settings, [topic], "message.timestamp.type")[topic] != "CreateTime"


def _configs(settings: ClientSettings, topics: Iterable[str], name: str) -> dict[str, str | None]:
    """Return what a setting of each topic is; None where nobody tells."""
    found: dict[str, str | None] = {}
    with Admin(
        settings.bootstrap, connection=settings.connection(), policy=_policy(settings)
    ) as admin:
        for topic in topics:
            try:
                entries = admin.describe_configs(Resource.TOPIC, topic)
            except DlogError:
                entries = []
            found[topic] = next((each.value for each in entries if each.name == name), None)
    return found


def _described(settings: ClientSettings, topics: Iterable[str]) -> ClusterView:
    with (
        _asking(settings, "topics"),
        Admin(
            settings.bootstrap, connection=settings.connection(), policy=_policy(settings)
        ) as admin,
    ):
        return admin.describe_topics(list(topics))


def _checked(topic: TopicView | None, name: str, settings: ClientSettings) -> TopicView:
    if topic is None or topic.error_code == UnknownTopicOrPartitionError.code:
        raise SparkSourceError(
            "DLOG_UNKNOWN_TOPIC_OR_PARTITION",
            f"The cluster at {settings.bootstrap} has no topic {name}.",
            "See dlogctl topic list, and create the target first.",
        )
    if topic.error_code != NONE:
        error = error_for(topic.error_code)
        raise SparkSourceError(
            "DLOG_LOOKUP_FAILED",
            f"The cluster at {settings.bootstrap} says of topic {name!r}: {error.name}.",
            "See dlogctl topic list, and dlogctl status.",
        )
    return topic


def find_bounds(
    settings: ClientSettings, wanted: Sequence[TopicPartition]
) -> tuple[PartitionBounds, ...]:
    """Return where partitions begin and end now."""
    with (
        _asking(settings, "offsets"),
        Consumer(
            settings.bootstrap,
            isolation=settings.isolation,
            connection=settings.connection(),
            policy=_policy(settings),
        ) as consumer,
    ):
        ends = consumer.end_offsets(wanted)
        # After the ends: a start that moves meanwhile is not passed over.
        starts = consumer.start_offsets(wanted)
    return tuple(
        PartitionBounds(
            topic=each.topic,
            partition=each.partition,
            start_offset=starts[each],
            end_offset=ends[each],
        )
        for each in wanted
    )
