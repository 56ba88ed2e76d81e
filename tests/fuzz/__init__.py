"""Decoders and rpcs under arbitrary bytes: `make fuzz` looks for new ones, the corpus is replayed by the tests."""
