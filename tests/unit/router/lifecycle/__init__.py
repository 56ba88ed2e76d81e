"""The life of a call in a router's core."""
