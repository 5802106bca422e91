"""Connections to the cluster, metadata, and calls to leaders."""
