"""The laws of the project's source, as tests: one file per kind of law."""
