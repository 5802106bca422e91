"""Cluster metadata on Raft: the only package that knows pysyncobj."""
