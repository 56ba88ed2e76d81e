"""Throughput and latency of a mesh, beside those of a bare gRPC server in the same run: `python -m benchmarks`."""
