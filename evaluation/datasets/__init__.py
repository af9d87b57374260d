"""Data sets out of files: one module per layout, one shape for all."""
