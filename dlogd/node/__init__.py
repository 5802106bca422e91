"""One node as a whole: its parts are made, started and stopped here."""
