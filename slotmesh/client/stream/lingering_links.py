"""Streams to routers that leave, on which iterations go on that had begun there.

Purpose: calls whose values come one by one cannot move, so they go on where they are until they end, or until the
router does; everything else of the session has moved to another router by then.
Invariants: nothing new is sent on such a stream, and nothing on it is acknowledged: results of calls that moved come
over the new one. When the stream ends, what is left of it has failed.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

import grpc

from slotmesh.client.stream.link import RouterLink
from slotmesh.client.stream.rpc_failures import credential_refusal
from slotmesh.errors import Failure

FailRest: TypeAlias = Callable[[Failure | None, bool], object]
"""Takes the failure of a stream that ended as the caller may not go on, else None; and whether it was cancelled."""

log = logging.getLogger(__name__)


class LingeringLinks:
    """Usually none; one at a time, unless routers leave faster than iterations end."""

    def __init__(self) -> None:
        self._links: dict[asyncio.Task[None], RouterLink] = {}

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Each ends with its stream."""
        return set(self._links)

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of their calls."""
        return any(link.has_wanted for link in self._links.values())

    def keep(self, link: RouterLink, running: asyncio.Task[None], fail_rest: FailRest) -> None:
        """`running` is the link's `run`; `fail_rest` fails the calls that are left when it has ended."""
        link.linger()
        task = asyncio.get_running_loop().create_task(_wait(running, fail_rest), name="slotmesh-client-linger")
        self._links[task] = link
        task.add_done_callback(self._ended)

    def abandon(self) -> None:
        """Nobody waits any more: the routers are told so."""
        for link in self._links.values():
            link.take_back_all()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._links[task]


async def _wait(running: asyncio.Task[None], fail_rest: FailRest) -> None:
    is_closed, refusal = False, None
    try:
        await running
    except asyncio.CancelledError:
        is_closed = True
        raise
    except grpc.RpcError as error:
        refusal = credential_refusal(error)  # or the router has left
    except Exception:
        log.exception("a stream to a router that leaves failed")
    finally:
        fail_rest(refusal, is_closed)
