"""Data source `dlog` for Apache Spark, in pure Python: reads and writes the log.

`register(spark)` makes it known to a session; see docs/spark.md. Importing anything here is cheap.
"""

from dlog.spark.install.shipped import use_compiled_parts
from dlog.spark.registration import register

__all__ = ["register"]

# Before anything of the client is imported: where this runs from an archive, it looks for them.
use_compiled_parts(__spec__)
