"""What a router does on the event loop."""
