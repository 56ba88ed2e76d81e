"""The gRPC server of every service: guards, edge, health, reflection, an ordered stop."""
