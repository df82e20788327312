"""How: one package an operation, one file a strategy."""
