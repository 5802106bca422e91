"""Load programs: separate processes, the same for every server, one line of JSON as result."""
