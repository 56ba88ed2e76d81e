"""Decisions of the replica: pure, synchronous, `(event, now) -> commands`."""
