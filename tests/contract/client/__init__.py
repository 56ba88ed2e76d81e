"""The client over real gRPC."""
