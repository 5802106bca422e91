"""Kafka's wire protocol without sockets: frames, headers, and every message that dlog speaks."""
