"""By this name Spark finds the data source `dlog` wherever it is installed, without `register`.

Spark imports every module `pyspark_*` of its Python path, and finds no source when one raises.
"""

try:
    from dlog.spark.install.missing_packages import missing_packages

    if missing_packages():
        from dlog.spark.incomplete import IncompleteDataSource as DefaultSource
    else:
        from dlog.spark.source import DlogDataSource as DefaultSource
except ImportError:  # dlog itself is not whole; `dlog.spark.register` says what is missing
    pass

__all__ = ["DefaultSource"]
