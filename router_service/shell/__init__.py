"""Streams, links and timers of the router. The shell decides nothing; the core does."""
