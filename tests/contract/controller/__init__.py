"""Controllers over real gRPC."""
