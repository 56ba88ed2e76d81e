"""The shared runtime."""
