"""Replicas over real gRPC."""
