"""Counters and measurements of the node, and the view of Prometheus."""
