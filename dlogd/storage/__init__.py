"""Partition logs on disk: segments, indexes, recovery, retention, and the engines that write them."""
