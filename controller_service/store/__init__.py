"""Where what should be is kept: the `Store` protocol and its implementations."""
