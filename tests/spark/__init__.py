"""The Spark data source in real sessions, against real nodes."""
