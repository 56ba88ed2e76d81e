"""The shared pieces of large payloads."""
