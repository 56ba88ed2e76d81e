"""The process: its main loop, signals, background tasks, clocks, and channels. No behaviour of the mesh itself."""
