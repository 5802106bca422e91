"""The daemon: one node that keeps a log."""
