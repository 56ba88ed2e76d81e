"""What a message costs beside the calls in it: the figures by which frames and slices are chosen.

Measured on the machines of docs/performance.md. They need not be exact: a factor of two changes little.
"""

from __future__ import annotations

from typing import Final

MESSAGES_S: Final = 0.0005
"""Processor time, seconds, of a message and its answer, at both ends together."""

QUICK_S: Final = 0.001
"""Calls that take less than this, seconds, are quick: messages are a good part of what they cost."""

FULL_CALLS: Final = 256
"""Calls of a frame whose message is a small part of what it costs."""
