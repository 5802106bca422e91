"""Preflight: what a start on this host would stumble over, found before anything is stopped.

Looks, and changes nothing. `dlogd --preflight` runs it as the user of the daemon.
"""
