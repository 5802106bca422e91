"""Tests with real processes, file systems and disks: what a crash leaves."""
