"""What operators see over HTTP: a small server and its pages."""
