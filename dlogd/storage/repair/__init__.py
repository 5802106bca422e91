"""Scrub and repair of segments that have rotted."""
