"""Registration of the data source with a session: `dlog.spark.register(spark)`.

Where dlog is installed, Spark finds the source by itself (`pyspark_dlog`); everywhere else, and for
streaming queries with files from `--py-files`, a session needs this call.
"""

from typing import Any

from dlog.spark.install.missing_packages import require_packages

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_EXISTS = "DATA_SOURCE_ALREADY_EXISTS"


def register(
    spark: Any, *, pushdown: bool = False, ship: bool = True, check: bool | None = None
) -> None:
    """Make `format("dlog")` work in all of a session's processes, and in this thread. Idempotent.

    `ship` takes dlog to executors where it is not installed. `check` runs a small job that looks
    whether their Python has what is needed, on Spark Connect, too; None: where it may be another
    one than this, and the session is a classic one. `pushdown`
    lets readers with the option `pushFilters` get filters, by a conf of the session that other
    Python data sources heed, too.

    A thread that the program starts itself has no session of its own to look the sink up in: call
    this there as well before it writes. Reads need no such thing.

    Raises SparkSourceError that says what is missing where.
    """
    require_packages()
    # Not above: this module must be importable where these packages are missing.
    from pyspark.errors import PySparkException

    from dlog.spark.install import shipping
    from dlog.spark.source import DlogDataSource

    classic = not shipping.is_connect(spark)
    if ship:
        shipping.ship(spark)
    if check is None:
        check = classic and not shipping.same_python_everywhere(spark)
    if check:
        from dlog.spark.install.executors import check_executors, check_server

        (check_executors if classic else check_server)(spark)
    if classic:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    if pushdown:
        spark.conf.set(_PUSHDOWN, "true")
    try:
        spark.dataSource.register(DlogDataSource)
    except PySparkException as error:
        # Spark has found it by itself, and lets nobody replace it then.
        if _EXISTS not in str(error):
            raise
