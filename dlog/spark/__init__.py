"""Reads and writes the log from Apache Spark, in pure Python: the data source `dlog`.

`register(spark)` makes it known to a session; see docs/spark.md.
"""
