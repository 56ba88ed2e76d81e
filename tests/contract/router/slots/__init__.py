"""Leased slots through a real router, between callers and replicas that are fakes."""
