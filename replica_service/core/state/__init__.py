"""What waits, runs and is remembered at one replica: permits, lanes, batches, slots, sessions."""
