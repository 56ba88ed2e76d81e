"""The router, piece by piece."""
