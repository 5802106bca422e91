"""Releases on a host: directories made whole from a bundle, and the link to the one in use.

Uses the standard library alone, for a bundle brings these modules along and runs them before
anything is installed.
"""
