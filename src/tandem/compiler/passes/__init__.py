"""Graph rewrites, one a file."""
