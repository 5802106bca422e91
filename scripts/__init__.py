"""Programs behind the verbs of the Makefile."""
