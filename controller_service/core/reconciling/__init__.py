"""What brings the observed state nearer to the desired one: replicas, owners, rollouts, scales, shifts, tables."""
