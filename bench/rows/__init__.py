"""The rows of the table: what is done to the servers, and what must come out."""
