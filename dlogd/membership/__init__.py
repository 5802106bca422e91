"""Who is there, as gossip or the configuration says: hints for discovery, never a decision."""
