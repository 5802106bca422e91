"""The data source in Spark, and what of it needs a cluster."""
