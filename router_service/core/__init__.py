"""Decisions of the router: pure, synchronous, `(event, now) -> commands`."""
