"""How many replicas a backend should have, by its load."""
