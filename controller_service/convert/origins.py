"""Who asked for a change, as the history of revisions has it."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

import grpc

from controller_service.core.revisions import ChangeOrigin
from slotmesh.security.current import caller_name, current_rpc

CLIENT_KEY: Final = "slotmesh-client"
"""Metadata by which a program says what it is. Nobody checks it: it is for people who read the history."""
_CLIENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./ -]{0,63}")
_MAX_PEER_CHARS: Final = 128


def origin_of(context: grpc.aio.ServicerContext[Any, Any]) -> ChangeOrigin:
    """As `slotmesh at 127.0.0.1:52114`; where callers are asked who they are, `operator/ops by slotmesh at ...`."""
    said = next((value for key, value in context.invocation_metadata() or () if key == CLIENT_KEY), "")
    client = said if isinstance(said, str) and _CLIENT.fullmatch(said) else "rpc"
    _, _, peer = unquote(context.peer()).partition(":")
    where = f"{client} at {peer[:_MAX_PEER_CHARS]}" if peer else client
    name = caller_name()
    who = f"{name} by {where}" if name else where
    return ChangeOrigin(who=who, identity=name, method=current_rpc())
