"""What the client library promises, against dlogd and against Apache Kafka: one suite for both.

A test that needs only the words of the protocol runs twice, once per server (`conftest`). What
passes against one and fails against the other is the library's fault, or dlogd's. A machine that
has no Java skips Kafka's half and says so.
"""
