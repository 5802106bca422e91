"""The shared half of dlog: words and formats, the wire protocol, the client."""

__version__ = "0.1.0"
