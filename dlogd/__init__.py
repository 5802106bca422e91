"""The daemon: one node that keeps a log."""

__version__ = "0.1.0"
