"""Values of handlers that yield: how far they may be ahead, and how they are passed on."""
