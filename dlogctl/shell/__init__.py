"""Completion in shells, and the manual page."""
