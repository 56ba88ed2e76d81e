"""The values that a replica moves: runs of calls, what they carry and remember, commands and events."""
