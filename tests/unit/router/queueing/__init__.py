"""Queues of a router's core."""
