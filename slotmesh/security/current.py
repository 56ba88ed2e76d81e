"""Who calls: the identity behind the rpc that the running task serves, and which rpc that is.

Invariants: both are set once per rpc, before its handler runs; tasks that a handler starts inherit them. Where nobody
is asked who they are, the caller is `ANYBODY`.
"""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2b
from typing import Final

from slotmesh.security.identity import ANYBODY, Identity, is_member

CALLER: Final[ContextVar[Identity]] = ContextVar("slotmesh_caller", default=ANYBODY)

RPC: Final[ContextVar[str]] = ContextVar("slotmesh_rpc", default="")


def current_rpc() -> str:
    """The full name of the rpc that is being served here; empty where nobody is asked who they are."""
    return RPC.get()


def caller() -> Identity:
    """Who makes the rpc that is being served here."""
    return CALLER.get()


def caller_name() -> str:
    """The name of that identity; empty where nobody is asked who they are."""
    who = CALLER.get()
    return "" if who is ANYBODY else who.name


def of_caller(chosen_id: str) -> str:
    """An id that a caller has chosen, told from the same id of other callers. 32 hexadecimal digits, or as it was."""
    name = caller_name()
    if not chosen_id or not name:
        return chosen_id
    return blake2b(f"{name}\0{chosen_id}".encode(), digest_size=16).hexdigest()


def quota_name() -> str:
    """Under which name the caller's quotas are kept; empty where it has none, as members of the mesh have."""
    name = caller_name()
    return "" if is_member(name) else name
