"""Processes and disks that fail for real."""
