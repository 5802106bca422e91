"""A data source that only writes, for tests of the sink alone."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dlog.spark.options import client_settings
from dlog.spark.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from dlog.spark.write_options import parse_write_options


class SinkOnly(DataSource):
    """`dlog` without its reader."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "dlog-sink"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the batch sink."""
        return batch_writer(
            schema, overwrite, client_settings(self.options), parse_write_options(self.options)
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the streaming sink."""
        return stream_writer(
            schema, client_settings(self.options), parse_write_options(self.options)
        )
