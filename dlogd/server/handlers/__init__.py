"""One module per API, or few that share their rules: a request in, a response's fields out."""
