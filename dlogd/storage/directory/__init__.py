"""Data directories: lock, identity, checkpoints, and which logs they hold."""
