"""Frames on virtual time: what messages and calls cost, where they gather, and whether small frames stay small.

The real cores, with the real rules for slices (`router_service.core.limits.capacity`) and for small frames
(`slotmesh.streams.pacing`), between processes that have a processor each, or share a few, and that pay for each message
and for each call in it. Clients make a new call when one is answered.
"""
