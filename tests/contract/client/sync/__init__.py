"""The synchronous client over real gRPC."""
