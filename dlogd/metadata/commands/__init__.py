"""Commands that change the metadata, and their encoding."""
