"""What pods say of replicas."""
