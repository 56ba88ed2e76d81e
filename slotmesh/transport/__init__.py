"""I/O of streams, at whichever end: writers, pacing, both halves of a stream, channels that are replaced."""
