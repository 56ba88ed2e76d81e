"""Sessions: what their clients know, and what became of their calls when they have moved."""
