"""A Result in, text out: one module a format."""
