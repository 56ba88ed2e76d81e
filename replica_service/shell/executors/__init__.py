"""What executes calls, by kind of method: on the event loop, on a loop of the handler's own, in threads."""
