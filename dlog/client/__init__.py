"""Async and blocking clients of a cluster: a thin layer over `dlog.transport`."""
