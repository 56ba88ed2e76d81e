"""A list out of values that are encoded already, as its own content type would encode it.

Purpose: values that come one by one are encoded while they are what they are, and take no more room than their bytes.
"""

from __future__ import annotations

from slotmesh.codec.content_types import JSON, MSGPACK
from slotmesh.codec.msgpack import array_head


class EncodedList:
    """A list that grows at its end."""

    __slots__ = ("_body", "_count", "_is_json")

    def __init__(self, content_type: str) -> None:
        """An empty list.

        Raises:
            ValueError: the content type carries no lists.
        """
        if not carries_lists(content_type):
            raise ValueError(f"{content_type} carries no lists")
        self._is_json = content_type == JSON
        self._body = bytearray()
        self._count = 0

    @property
    def size(self) -> int:
        """Bytes, but for those of the list's head."""
        return len(self._body)

    def append(self, payload: bytes) -> None:
        """One value more, encoded."""
        if self._is_json and self._count:
            self._body += b","
        self._body += payload
        self._count += 1

    def encoded(self) -> bytes:
        """The list."""
        if self._is_json:
            return b"[" + self._body + b"]"
        return array_head(self._count) + self._body


def carries_lists(content_type: str) -> bool:
    """Whether a list of any values is a value of this content type."""
    return content_type in {JSON, MSGPACK}
