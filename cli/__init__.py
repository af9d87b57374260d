"""The person's door: the `twostage` command."""
