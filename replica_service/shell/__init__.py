"""The replica's streams, timers, tasks and threads: one writer, the engine, for the core's state."""
