"""A real daemon under random bytes."""
