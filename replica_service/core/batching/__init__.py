"""Batches of batch methods: what waits for one, what it weighs, when one is cut."""
