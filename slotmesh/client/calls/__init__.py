"""Calls, from their making to their outcome: methods, options, the queues in which they wait, what left."""
