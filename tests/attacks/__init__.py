"""Attacks from the loopback of this machine, each with the bounds of what it may cost others."""
