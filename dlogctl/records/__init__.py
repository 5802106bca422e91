"""Records as lines: formats, JSON, and what became of them."""
