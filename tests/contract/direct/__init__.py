"""Direct lanes: streams to a real replica, and the client of a whole mesh."""
