"""What travels between the processes of a Spark job: errors, ranges, settings."""

import pickle

from dlog.spark.errors import DataLossError
from dlog.spark.reading.ranges import OffsetRange
from dlog.spark.settings import ClientSettings, TlsSettings


def test_an_error_is_the_same_in_another_process() -> None:
    error = DataLossError("KAFKA_DATA_LOSS.PARTITIONS_DELETED", "t-0 is gone.", "Say so.")
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is DataLossError
    assert str(there) == str(error) == "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] t-0 is gone. Say so."
    assert (there.error_class, there.cure) == (error.error_class, error.cure)


def test_ranges_and_settings_travel() -> None:
    wanted = OffsetRange(topic="t", partition=3, start_offset=5, end_offset=9)
    settings = ClientSettings(bootstrap="h:1", tls=TlsSettings(must_match_host=False))
    assert pickle.loads(pickle.dumps((wanted, settings))) == (wanted, settings)
    assert len(wanted) == 4
    options = settings.connection()
    assert options.tls is not None and not options.tls.check_hostname
