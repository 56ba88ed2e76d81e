"""The client for programs without asyncio: the same endpoints, methods and lanes, whose calls block.

A thin layer: one thread has an event loop with the asyncio client, and all other threads pass their calls to it.
"""
