"""The whole mesh: real processes, real gRPC, real signals."""
