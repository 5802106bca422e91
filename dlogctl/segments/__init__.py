"""Segment files, read offline."""
