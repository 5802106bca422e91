"""The same work for each client library, one program for each, none of which imports another's."""
