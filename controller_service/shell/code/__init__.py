"""The code that replicas run: where handlers' code is, snapshots of it, and their storage."""
