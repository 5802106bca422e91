"""The bytes of every format, as documented under docs/formats."""
