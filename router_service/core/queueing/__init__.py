"""What waits, for how long, and in which order."""
