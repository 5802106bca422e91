"""The controller: who lives, and what has to change because of it."""
