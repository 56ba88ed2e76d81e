"""Services over real gRPC on the loopback interface."""
