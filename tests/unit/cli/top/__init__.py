"""The command line's own decisions, and what it prints."""
