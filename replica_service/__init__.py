"""Hosts one copy of a handler: executes and batches its calls."""
