"""Requests between nodes: messages, the channel that asks, the listener that answers."""
