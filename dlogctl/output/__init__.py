"""Output for people and programs: documents, tables, escaping."""
