"""What starts next: who gets a free permit, and whether a call may start at all."""
