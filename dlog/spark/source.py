"""The data source `dlog`, as Spark finds it: `spark.read.format("dlog")`.

Spark makes it anew, by its options, in every process that plans or runs a query: three or more for
each. It only reads the options; what connects are the readers and writers that it makes. The
modules that they need for that are imported when they connect: two thirds of this import's time.
"""

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from dlog.spark.options.connection_options import client_settings
from dlog.spark.options.options import ReadOptions, check_source_options, parse_read_options
from dlog.spark.reading.batch_reader import DlogBatchReader
from dlog.spark.reading.push_filters import FilteredBatchReader
from dlog.spark.reading.stream_reader import DlogStreamReader
from dlog.spark.schema import check_schema, source_schema

if TYPE_CHECKING:
    from dlog.spark.writing.sink import BatchWriter, StreamWriter

_log = logging.getLogger("dlog.spark")


class DlogDataSource(DataSource):
    """Reads and writes topics of a cluster. Owner: one process of Spark."""

    @classmethod
    def name(cls) -> str:
        """Return what `format` is called with."""
        return "dlog"

    def schema(self) -> StructType:
        """Return the columns of a read; raises OptionError for options that no read can have."""
        return source_schema(check_source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads a batch query."""
        options = self._options(schema, is_streaming=False)
        kind = FilteredBatchReader if options.push_filters else DlogBatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what plans and reads a streaming query."""
        return DlogStreamReader(self._options(schema, is_streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """Return what writes a DataFrame; raises SparkSourceError where it cannot be written."""
        from dlog.spark.options.write_options import parse_write_options  # noqa: PLC0415
        from dlog.spark.writing.sink import batch_writer  # noqa: PLC0415

        return batch_writer(
            schema, overwrite, client_settings(self.options), parse_write_options(self.options)
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        """Return what writes the batches of a query; raises SparkSourceError as `writer` does."""
        from dlog.spark.options.write_options import parse_write_options  # noqa: PLC0415
        from dlog.spark.writing.sink import stream_writer  # noqa: PLC0415

        return stream_writer(
            schema, client_settings(self.options), parse_write_options(self.options)
        )

    def _options(self, schema: StructType, *, is_streaming: bool) -> ReadOptions:
        check_schema(schema)
        options = parse_read_options(self.options, is_streaming=is_streaming)
        for warning in options.warnings:
            _log.warning("%s", warning)
        return options
