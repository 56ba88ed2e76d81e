"""What the controller does: streams, processes and timers around the core's decisions."""
