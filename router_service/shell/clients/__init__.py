"""The clients that the router serves: streams, single calls, and their answers."""
