"""What launched replicas write: files that are followed and rotated, and the newest lines of each."""
