"""The replica as a process: its life, whether its handler is well, whether it blocks its loop."""
