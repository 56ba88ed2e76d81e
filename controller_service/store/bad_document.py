"""What stored state is refused by, whichever part of it."""

from __future__ import annotations


class BadDocument(ValueError):
    """A document that this version cannot read; the message says where, and what is wrong."""
