"""The shared half of dlog: words and formats, the wire protocol, the client."""
