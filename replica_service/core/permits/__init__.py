"""Permits: how many calls may run, how long these take, and how routers hear that there is room."""
