"""Jobs over the log: archive topics to Parquet, replay an archive, audit, aggregate by windows.

Each is a command (`dlogctl pipeline ...`) and a function; see docs/spark.md.
"""
