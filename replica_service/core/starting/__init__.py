"""What starts next: which calls get a free permit, and whether a call may start at all."""
