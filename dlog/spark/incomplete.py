"""Substitute for the data source `dlog` where a package is missing: its error names the package.

Without it Spark says that there is no such source. Imports nothing that may be missing, but pyspark
(`pyspark_dlog` is imported by Spark alone).
"""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

from dlog.spark.install.missing_packages import require_packages


class IncompleteDataSource(DataSource):
    """Reads and writes nothing. Owner: one process of Spark, which makes it before anything."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raise SparkSourceError, which names what is missing and where."""
        require_packages()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return what `format` is called with."""
        return "dlog"
