"""What a transaction of etcd has, as values: conditions, reads, writes and deletions."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Kv(NamedTuple):
    """A key that was read."""

    key: bytes
    value: bytes
    created: int
    """The revision that created it."""
    modified: int
    """The revision that wrote it last."""
    lease: int


class Is(NamedTuple):
    """A condition: the key was created, or written last, at this revision, or is bound to this lease; 0: is missing."""

    key: bytes
    created: int | None = None
    modified: int | None = None
    lease: int | None = None


class Put(NamedTuple):
    """Writes a key."""

    key: bytes
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Deletes a key, or a range up to `end`."""

    key: bytes
    end: bytes = b""


class Get(NamedTuple):
    """Reads a key, or a range up to `end`."""

    key: bytes
    end: bytes = b""
    limit: int = 0


Write: TypeAlias = Put | Delete
KeyOperation: TypeAlias = Put | Delete | Get


class TxnResult(NamedTuple):
    """What became of a transaction."""

    is_met: bool
    """All conditions were met."""
    revision: int
    found: list[list[Kv]]
    """Of each `Get` that was carried out."""


class Changes(NamedTuple):
    """What a watch reports: all changes of some revisions."""

    revision: int
    put: list[Kv]
    deleted: list[bytes]


def end_of(prefix: bytes) -> bytes:
    """The first key behind all keys with this prefix, which does not end with byte 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
