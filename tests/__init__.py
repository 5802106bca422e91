"""Tests, by kind: what a folder holds stands in its own docstring."""
