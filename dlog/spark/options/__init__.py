"""Options of jobs, by the names of Spark's Kafka source."""
