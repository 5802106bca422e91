"""Partitions as replicated things: who leads, what is committed, who waits for it."""
