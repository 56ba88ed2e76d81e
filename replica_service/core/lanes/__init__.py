"""Lanes: calls of one ordering key, in order; what is remembered of them, and which partitions are served."""
