"""Load generators of `twostage load`, and what their runs say."""
