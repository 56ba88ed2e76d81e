"""A search in three handlers, of which one calls the others."""
