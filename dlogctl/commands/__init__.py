"""One module per group of commands; `dlogctl.__main__` loads the one that is asked for."""
