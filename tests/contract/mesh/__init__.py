"""Several services together over real gRPC."""
