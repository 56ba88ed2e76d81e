"""Texts of users' code, as frames carry them. Pure."""

from __future__ import annotations


def sendable_text(text: str, most: int) -> str:
    """The text as a frame carries it: texts of users' code have any length, and characters that UTF-8 cannot encode."""
    return text[:most].encode("utf-8", "replace").decode()
