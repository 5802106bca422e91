"""HTTP server and pages for operators."""
