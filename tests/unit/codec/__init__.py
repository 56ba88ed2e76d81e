"""Values, payloads and arguments."""
