"""Partition logs on disk: segments, indexes, recovery, retention, and what writes them."""
