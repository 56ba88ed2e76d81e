"""Permits: how many calls may run, how long these take, and which router is told of free ones."""
