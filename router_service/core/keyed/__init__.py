"""The order of calls with an ordering key."""
