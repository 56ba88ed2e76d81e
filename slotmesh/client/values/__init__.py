"""Values of handlers that yield: as a stream brings them, and as applications take them one by one."""
