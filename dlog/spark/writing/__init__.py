"""Sinks: rows to records, and what a writing task promises."""
