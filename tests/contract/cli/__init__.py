"""Commands over real gRPC, in the process of the test."""
