"""I/O of streams, at both ends: writers, pacing, both halves of a stream, channels that are replaced."""
