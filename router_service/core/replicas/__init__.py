"""Replicas as the router sees them: what was sent to each, what it can take, what its answers mean."""
