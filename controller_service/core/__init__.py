"""Decisions of the controller: pure, synchronous, over immutable states."""
