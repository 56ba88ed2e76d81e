"""What some calls need: payloads in chunks, sessions that move, slots."""
