"""Hints about members of the cluster, from gossip or the configuration; never a decision."""
