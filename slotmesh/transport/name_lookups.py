"""Lookups of names: by the operating system, or by a DNS server whose address is given.

Invariants: the event loop never waits for a name server. Of one name, one thread at a time waits for the operating
system, also when its lookup was given up; the process ends without waiting for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from slotmesh.discovery.targets import DnsName

LOOKUP_S: Final = 5.0
"""How long a lookup may take."""

Lookup = Callable[[DnsName], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a name. Raises LookupFailed."""


class LookupFailed(Exception):
    """The name has no addresses, or no name server has answered; the message is the reason."""


class NameLookups:
    """The lookups of one process or client, by the form of the name. A `Lookup`."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[Sequence[str] | OSError]] = {}
        """Host -> the lookup of the operating system that has not ended."""

    async def __call__(self, name: DnsName) -> Sequence[str]:
        try:
            async with asyncio.timeout(LOOKUP_S):
                if name.resolver is None:
                    found = await self._by_system(name.host)
                else:
                    found = await _by_server(name.host, *name.resolver)
        except TimeoutError:
            raise LookupFailed(f"no answer within {LOOKUP_S:g} s") from None
        if isinstance(found, OSError):
            raise LookupFailed(found.strerror or str(found)) from None
        return found

    async def _by_system(self, host: str) -> Sequence[str] | OSError:
        running = self._running.get(host)
        if running is None:
            loop = asyncio.get_running_loop()
            running = self._running[host] = loop.create_future()
            running.add_done_callback(lambda _: self._running.pop(host))
            # Not the loop's executor, whose threads are waited for when the process ends.
            work = threading.Thread(target=_resolve, args=(host, loop, running), name=f"resolve-{host}", daemon=True)
            work.start()
        return await asyncio.shield(running)


def _resolve(host: str, loop: asyncio.AbstractEventLoop, found: asyncio.Future[Sequence[str] | OSError]) -> None:
    outcome: Sequence[str] | OSError
    try:
        outcome = [str(it[4][0]) for it in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        outcome = error
    except UnicodeError as error:  # a label is empty, or longer than 63 characters
        outcome = OSError(f"it is no name of DNS: {error}")
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, found, outcome)


def _settle(found: asyncio.Future[Sequence[str] | OSError], outcome: Sequence[str] | OSError) -> None:
    if not found.done():
        found.set_result(outcome)


async def _by_server(name: str, host: str, port: int) -> Sequence[str]:
    try:
        from dns.asyncresolver import Resolver  # noqa: PLC0415 - an extra
        from dns.exception import DNSException  # noqa: PLC0415
    except ImportError:
        raise LookupFailed(
            "a DNS server is named before it, which needs dnspython (pip install 'slotmesh[dns]'); with dns:///NAME:PORT"
            " the operating system resolves it"
        ) from None
    resolver = Resolver(configure=False)
    # Half of the time: a server that does not answer for addresses of one version must not hide those of the other.
    resolver.nameservers, resolver.port, resolver.lifetime = [host], port, LOOKUP_S / 2
    answers = await asyncio.gather(
        *(resolver.resolve(name, kind, search=False, raise_on_no_answer=False) for kind in ("A", "AAAA")),
        return_exceptions=True,
    )
    errors = [it for it in answers if isinstance(it, BaseException)]
    for error in errors:
        if not isinstance(error, DNSException | OSError):
            raise error
    found = [record.address for it in answers if not isinstance(it, BaseException) for record in it]
    if errors and not found:
        raise LookupFailed(str(errors[0]).partition("\n")[0])
    return found
