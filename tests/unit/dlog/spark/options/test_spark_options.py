"""Options of Spark reads: names, precedence, what is refused, what is only warned of."""

import pickle
from typing import Any

import pytest

from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.offset_specs import Isolation
from dlog.spark.errors import OptionError
from dlog.spark.options import write_options
from dlog.spark.options.offsets import AtOffsets, AtTimestamp, AtTimestamps, Earliest, Latest
from dlog.spark.options.options import ReadOptions, client_settings, parse_read_options
from dlog.spark.options.subscription import Assign, Subscribe, SubscribePattern
from dlog.spark.settings import TlsSettings
from dlog.types import PartitionId, TopicPartition

NEEDED = {"kafka.bootstrap.servers": "h:1,i:2", "subscribe": "t"}


def key(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, PartitionId(partition))


def parse(is_streaming: bool = False, /, **options: Any) -> ReadOptions:
    """Parse options of a query; dots are written as two underscores."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    return parse_read_options({**NEEDED, **named}, is_streaming=is_streaming)


def refusal(is_streaming: bool = False, /, **options: Any) -> str:
    with pytest.raises(OptionError) as error:
        parse(is_streaming, **options)
    return str(error.value)


def test_defaults_are_those_of_the_kafka_source() -> None:
    batch, stream = parse(), parse(True)
    assert (batch.starting, batch.ending) == (Earliest(), Latest())
    assert stream.starting == Latest()
    assert batch.subscription == Subscribe(("t",))
    assert batch.fail_on_data_loss and not batch.include_headers and not batch.push_filters
    assert (batch.no_match, batch.attempt_count, batch.max_trigger_delay_s) == ("error", 3, 900)
    assert (batch.min_partitions, batch.max_records_per_partition) == (None, None)
    settings = batch.settings
    assert (settings.bootstrap, settings.client_id, settings.tls) == ("h:1,i:2", "dlog-spark", None)
    assert (settings.deadline_s, settings.isolation) == (120.0, Isolation.READ_UNCOMMITTED)
    assert batch.warnings == ()


def test_names_have_no_case_and_values_no_blanks() -> None:
    found = parse_read_options(
        {"KAFKA.Bootstrap.Servers": " h:1 ", "SUBSCRIBE": " a , b,,a ", "FailOnDataLoss": "FALSE"},
        is_streaming=False,
    )
    assert found.settings.bootstrap == "h:1"
    assert found.subscription == Subscribe(("a", "b"))
    assert not found.fail_on_data_loss


@pytest.mark.parametrize("end", ["starting", "ending"])
def test_a_timestamp_wins_over_timestamps_and_these_over_offsets(end: str) -> None:
    options = {
        f"{end}Timestamp": "5",
        f"{end}OffsetsByTimestamp": '{"t": {"0": 7}}',
        f"{end}Offsets": '{"t": {"0": 9}}',
    }
    wanted = [AtTimestamp(5), AtTimestamps({key("t", 0): 7}), AtOffsets({key("t", 0): 9})]
    for bound in wanted:
        found = parse(False, **options)
        assert (found.starting if end == "starting" else found.ending) == bound
        options.pop(next(iter(options)))


def test_subscriptions_are_one_of_three() -> None:
    base = {"kafka.bootstrap.servers": "h:1"}
    assign = parse_read_options({**base, "assign": '{"b":[1,0],"a":[2]}'}, is_streaming=True)
    assert assign.subscription == Assign((key("a", 2), key("b", 0), key("b", 1)))
    pattern = parse_read_options({**base, "subscribePattern": "t.*"}, is_streaming=True)
    assert pattern.subscription == SubscribePattern("t.*")
    with pytest.raises(OptionError, match=r"DLOG_OPTION_MISSING. One of the following"):
        parse_read_options(base, is_streaming=True)
    several = refusal(assign='{"a":[0]}')
    assert several.startswith("[DLOG_OPTION_CONFLICT] Only one of the following options can be")
    assert "No topics to subscribe to" in refusal(subscribe=" , ")
    for wrong, message in (
        ({"assign": "a"}, "expected e.g"),
        ({"assign": "{}"}, "No topicpartitions to assign"),
        ({"assign": '{"a": [-1]}'}, "expected e.g"),
        ({"assign": '{"a": [0.5]}'}, "expected e.g"),
        ({"assign": '{"a": 1}'}, "expected e.g"),
        ({"assign": '["a"]'}, "expected e.g"),
        ({"assign": r'{"\ud800": [0]}'}, "expected e.g"),
        ({"subscribePattern": " "}, "Pattern to subscribe is empty"),
        ({"subscribePattern": "t("}, "subscribePattern is"),
        ({"subscribePattern": "t{0,99999999999}"}, "subscribePattern is"),
        ({"subscribePattern": "(" * 10_000}, "subscribePattern is"),
    ):
        with pytest.raises(OptionError, match=message):
            parse_read_options({**base, **wrong}, is_streaming=False)


def test_a_cluster_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers' must be specified"):
        parse_read_options({"subscribe": "t"}, is_streaming=False)
    with pytest.raises(OptionError, match="host:port of any node"):
        client_settings({"kafka.bootstrap.servers": "nowhere"})
    assert client_settings({"bootstrap.servers": "h:1"}).bootstrap == "h:1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka__auto__offset__reset": "latest"}, "'auto.offset.reset' is not supported"),
        ({"kafka__enable__auto__commit": "true"}, "'enable.auto.commit' is not supported"),
        ({"kafka__key__deserializer": "x"}, "'key.deserializer' is not supported"),
        ({"kafka__value__deserializer": "x"}, "'value.deserializer' is not supported"),
        ({"kafka__interceptor__classes": "x"}, "'interceptor.classes' is not supported"),
        ({"kafka__sasl__mechanism": "PLAIN"}, "'sasl.mechanism' is not supported"),
        ({"kafka__security__protocol": "SASL_SSL"}, "SASL is not supported"),
        ({"kafka__security__protocol": "HTTP"}, "PLAINTEXT or SSL"),
        ({"kafka__ssl__truststore__location": "/t.jks"}, "not said to be PEM"),
        ({"startingOffsets": "latest"}, "starting offset can't be latest"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "has -3 for t-0"),
        ({"startingOffsets": "first"}, "expected e.g"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "expected e.g"),
        ({"startingTimestamp": "soon"}, "startingTimestamp is 'soon'"),
        ({"startingTimestamp": "-1"}, "startingTimestamp is '-1'"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "error or latest"),
        ({"minPartitions": "0"}, "at least 1|from 1"),
        ({"maxRecordsPerPartition": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "a whole number"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is higher than"),
        ({"maxTriggerDelay": "soon"}, "a duration"),
        ({"maxTriggerDelay": "9" * 5000}, "a duration"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"kafka__isolation__level": "serializable"}, "read_uncommitted or read_committed"),
        ({"kafka__client__id": "x" * 40_000}, r"kafka.client.id is 'x{20}.*at most 32767 bytes"),
        ({"groupIdPrefix": "ß" * 20_000}, "groupIdPrefix is .*at most 32767 bytes"),
        ({"startingOffsets": "[" * 100_000}, r"expected e.g.*got \[{400}\.\.\.\.$"),
        ({"startingOffsets": '{"t":{"0":"%s"}}' % ("9" * 5000)}, "expected e.g"),
        ({"startingOffsets": '{"t":{"0":%s}}' % ("9" * 20)}, "at most 9223372036854775807"),
        ({"startingOffsets": '{"t":{"%s":1}}' % ("1" * 5000)}, "expected e.g"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, str], message: str) -> None:
    import re

    assert re.search(message, refusal(False, **options))


def test_both_ends_must_name_the_same_partitions_in_order() -> None:
    text = refusal(startingOffsets='{"t":{"0":5}}', endingOffsets='{"t":{"1":9}}')
    assert "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET]" in text
    text = refusal(startingOffsets='{"t":{"0":5}}', endingOffsets='{"t":{"0":4}}')
    assert "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET]" in text
    assert "The specified start offset 5 is greater than the end offset 4 for topic t" in text
    text = refusal(
        startingOffsetsByTimestamp='{"t":{"0":5}}', endingOffsetsByTimestamp='{"t":{"0":4}}'
    )
    assert "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET]" in text
    assert "The specified start timestamp 5 is greater than the end timestamp 4 for" in text
    parse(startingOffsets='{"t":{"0":5}}', endingOffsets='{"t":{"0":-1}}')


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert "not valid in streaming queries" in refusal(True, **{name: "1"})


def test_limits_and_durations() -> None:
    found = parse(
        True,
        maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="3",
        maxTriggerDelay="2h",
        maxBytesPerTrigger="99",
        fetchOffset__numRetries="0",
        fetchOffset__retryIntervalMs="20",
        kafkaConsumer__pollTimeoutMs="512",
        minPartitions="7",
        maxRecordsPerPartition="8",
        smallBatchOffsets="9",
        maxDecompressedBatchBytes="5000",
    )
    assert found.settings.decompressed_batch_bytes_max == 5000
    assert parse(True).settings.decompressed_batch_bytes_max == RECORDS_BYTES_MAX
    assert "maxDecompressedBatchBytes" in refusal(maxDecompressedBatchBytes="0")
    assert found.small_batch_offsets == 9
    assert parse(True).small_batch_offsets is None
    assert (found.max_offsets_per_trigger, found.min_offsets_per_trigger) == (10, 3)
    assert (found.max_trigger_delay_s, found.max_bytes_per_trigger) == (7200, 99)
    assert (found.attempt_count, found.retry_interval_s) == (1, 0.02)
    for given, attempts in (("1", 1), ("5", 5)):
        assert parse(fetchOffset__numRetries=given).attempt_count == attempts
    assert (found.min_partitions, found.max_records_per_partition) == (7, 8)
    assert found.settings.deadline_s == 0.512
    for text, seconds in (("15m", 900), ("30s", 30), ("250", 0.25), ("1d", 86400), ("5min", 300)):
        assert parse(True, maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_properties_of_the_consumer_are_understood_ignored_or_warned_of() -> None:
    found = parse(
        kafka__client__id="me",
        kafka__client__rack="r1",
        kafka__isolation__level="READ_COMMITTED",
        kafka__request__timeout__ms="1500",
        kafka__max__partition__fetch__bytes="4096",
        kafka__fetch__max__wait__ms="100",
    )
    settings = found.settings
    assert (settings.client_id, settings.rack) == ("me", "r1")
    assert settings.isolation is Isolation.READ_COMMITTED
    assert (settings.request_timeout_s, settings.partition_bytes_max) == (1.5, 4096)
    assert found.warnings == ()
    warned = parse(
        kafka__group__id="g", kafka__no__such="1", dlog__nothing="2", maxOffsetsPerTrigger="4"
    ).warnings
    assert warned == (
        "maxOffsetsPerTrigger option ignored in batch queries",
        "kafka.group.id is ignored: no consumer group is joined",
        "option dlog.nothing is not known and ignored",
        "option kafka.no.such is not known and ignored",
    )
    assert parse(True, maxOffsetsPerTrigger="4").warnings == ()


def test_a_mistyped_option_is_warned_of_by_the_one_that_is_meant() -> None:
    warned = parse(
        True,
        startingOffset="earliest",
        MAXOFFSETPERTRIGGER="5",
        failOnDataLos="false",
        subscribe__pattern="t",
        bootstrap__server="h:1",
        kafka__client__rak="r",
    ).warnings
    assert warned == (
        "option kafka.client.rak is not known and ignored",
        "option MAXOFFSETPERTRIGGER is not known and ignored: is maxOffsetsPerTrigger meant?",
        "option bootstrap.server is not known and ignored: is bootstrap.servers meant?",
        "option failOnDataLos is not known and ignored: is failOnDataLoss meant?",
        "option startingOffset is not known and ignored: is startingOffsets meant?",
        "option subscribe.pattern is not known and ignored: is subscribePattern meant?",
    )


def test_what_is_known_or_somebody_elses_is_not_taken_for_mistyped() -> None:
    known = ("maxOffsetsPerTrigger", "MAXTRIGGERDELAY", "includeHeaders")
    values = {"maxOffsetsPerTrigger": "5", "MAXTRIGGERDELAY": "1s", "includeHeaders": "true"}
    assert parse(True, **{name: values[name] for name in known}).warnings == ()
    # Of the sink, for a job may give both the same, and of Spark.
    others = [*write_options._OPTIONS, "path", "checkpointLocation", "queryName", "mode", "header"]
    others.remove("bootstrap.servers")
    options = {"kafkaConsumer.pollTimeoutMs": "7", "exactlyOnce": "true"}
    given = {name: options.get(name, "x") for name in others}
    assert parse_read_options({**NEEDED, **given}, is_streaming=True).warnings == ()


def test_what_one_kind_of_query_has_not_is_said_to_be_ignored() -> None:
    said = ("pushFilters option ignored in streaming queries",)
    assert parse(True, pushFilters="true").warnings == said
    assert parse(True, pushFilters="false").warnings == parse(pushFilters="true").warnings == ()
    said = ("maxOffsetsPerTrigger option ignored in batch queries",)
    assert parse(maxOffsetsPerTrigger="5").warnings == said


def test_tls_is_said_by_our_names_or_by_those_of_kafka() -> None:
    ours = parse(dlog__tls__ca="/ca", dlog__tls__certificate="/c", dlog__tls__key="/k").settings.tls
    assert ours == TlsSettings(ca_path="/ca", certificate_path="/c", key_path="/k")
    theirs = parse(
        kafka__security__protocol="SSL",
        kafka__ssl__truststore__location="/ca",
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__keystore__location="/both",
        kafka__ssl__keystore__type="PEM",
        kafka__ssl__key__password="p",
        kafka__ssl__endpoint__identification__algorithm="",
    ).settings.tls
    assert theirs == TlsSettings(
        ca_path="/ca", certificate_path="/both", key_password="p", must_match_host=False
    )
    assert parse(dlog__tls="true").settings.tls == TlsSettings()
    assert parse(kafka__security__protocol="PLAINTEXT").settings.tls is None
    plain = parse(kafka__security__protocol="PLAINTEXT", kafka__ssl__ca__location="/ca")
    assert plain.settings.tls is None


@pytest.mark.parametrize(("protocol", "tls"), [("PLAINTEXT", "true"), ("SSL", "false")])
def test_nothing_is_left_unencrypted_by_a_contradiction(protocol: str, tls: str) -> None:
    says = f"DLOG_OPTION_CONFLICT. kafka.security.protocol is {protocol}, but dlog.tls is {tls}"
    with pytest.raises(OptionError, match=says):
        parse(kafka__security__protocol=protocol, dlog__tls=tls)


def test_options_travel_to_the_tasks() -> None:
    for found in (parse(), parse(True, startingOffsets='{"t":{"0":1}}')):
        assert pickle.loads(pickle.dumps(found)) == found
