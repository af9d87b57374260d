"""The encoder service: texts to vectors."""
