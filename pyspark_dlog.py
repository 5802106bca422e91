"""By this name Spark finds the data source `dlog` wherever it is installed, without `register`.

Spark imports every module `pyspark_*` of its Python path, and finds no source when one raises.
"""

from importlib.util import find_spec

try:
    if find_spec("pyarrow") is not None:
        from dlog.spark.source import DlogDataSource as DefaultSource
except ImportError:  # Spark is here, but not what the source needs; `dlog.spark.register` says what
    pass

__all__ = ["DefaultSource"]
