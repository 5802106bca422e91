"""Listening, routing, handling requests: everything between a client and the partitions."""
