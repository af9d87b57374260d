"""How a model bundle is made and checked; nothing that serves imports this."""
