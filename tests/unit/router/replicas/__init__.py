"""What a router knows of replicas, and frames to them."""
