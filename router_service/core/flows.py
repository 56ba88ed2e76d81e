"""Flows: what the router's queues are fair between.

Owner: the edge makes one for each stream, and for each peer of unary calls; queues and accounts go by it.
"""

from __future__ import annotations


class Flow:
    """A stream, or all unary calls of one peer. Compared by identity."""

    __slots__ = ()
