"""Third-party clients against a running server: everything a user's program would do.

The same suite runs against Apache Kafka (`DLOG_TEST_BOOTSTRAP=host:port`): what passes there and
fails here is our fault.
"""
