"""Routers over real gRPC."""
