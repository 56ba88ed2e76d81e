"""Texts of users' code, as frames carry them. Pure."""

from __future__ import annotations


def sendable_text(text: str, most: int) -> str:
    """The text as a frame carries it: users' code may raise what is of any length, and what UTF-8 cannot say."""
    return text[:most].encode("utf-8", "replace").decode()
