"""Test suites of other projects, run against dlog and against Apache Kafka."""
