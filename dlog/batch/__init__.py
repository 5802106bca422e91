"""The v2 record batch: its head, and the records inside."""
