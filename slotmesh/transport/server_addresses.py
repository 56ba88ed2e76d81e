"""The addresses of servers that were given as a list, by name, or both. Names are resolved again while it runs.

Purpose: members find controllers, clients and ingresses find routers, by the same rules (`ResolvedNames`).
Invariants: no caller waits for a lookup, but for the first one, and with a bound of its own. Lookups are begun by one
task, and end with it.
Owner: the client, or the task that keeps up a member's stream to its controller. Several clients of one process may
share it. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from math import inf
from typing import Self

from slotmesh.discovery.resolved_names import ResolvedNames
from slotmesh.discovery.targets import DnsName, parse_targets
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import WarningBackoff
from slotmesh.transport.name_lookups import Lookup, LookupFailed, NameLookups

_log = get_logger(__name__)


class ServerAddresses:
    """The known addresses of the servers. Without names they never change, and nothing runs."""

    def __init__(
        self,
        given: str | Sequence[str],
        *,
        lookup: Lookup | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`given`: targets, as in `parse_targets`. `lookup` resolves names; None: as their form says.

        Raises:
            ValueError: there is no target, or one has none of the forms.
        """
        targets = parse_targets(given)
        self.text = ", ".join(map(str, targets))
        """The targets, for messages."""
        self._names = ResolvedNames(targets, draw)
        self._lookup = lookup or NameLookups()
        self._warnings = WarningBackoff()
        self._task: asyncio.Task[None] | None = None
        self._lookups: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._known = asyncio.Event()
        self._listeners: dict[Callable[[], object], None] = {}
        self.known = self._names.addresses
        """Those that are known now, in the order given. Empty before the first lookup has ended."""
        self._note()

    @classmethod
    def of(cls, given: ServerAddresses | str | Sequence[str]) -> ServerAddresses:
        """The same, or new ones. Raises as the constructor."""
        return given if isinstance(given, ServerAddresses) else cls(given)

    @property
    def are_resolved(self) -> bool:
        """Whether some are given by name: any of them may be used."""
        return self._names.has_names

    @property
    def problem(self) -> str:
        """Why the last lookup found no addresses; empty if it did."""
        return self._names.problem

    def host_of(self, address: str) -> str:
        """The name that an address was resolved from; empty if it was not."""
        return self._names.host_of(address)

    def listen(self, on_change: Callable[[], object]) -> Callable[[], object]:
        """Calls `on_change` after each change of what is known. Returns how to end that, which may be repeated."""
        self._listeners[on_change] = None
        return lambda: self._listeners.pop(on_change, None)

    def request(self) -> None:
        """The known servers do not answer, or are not the ones that are needed: resolves names soon."""
        if self._names.has_names:
            self.start()
            self._names.request(asyncio.get_running_loop().time())
            self._wake.set()

    def start(self) -> None:
        """Begins to resolve, if it has not begun. Needs a running loop."""
        if self._task is None and self._names.has_names:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="name-resolution")

    async def first(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """The known addresses; waits until there is one. Empty if there was none within `timeout_s`."""
        self.start()
        if not self._known.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._known.wait()
            except TimeoutError:
                pass
        return self.known

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Resolves no more, until it is started again. What is known stays."""
        task, self._task = self._task, None
        tasks = [*self._lookups, *([] if task is None else [task])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._names.give_up()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            for name in self._names.begin(loop.time()):
                task = loop.create_task(self._look_up(name), name=f"look-up-{name.host}")
                self._lookups.add(task)
                task.add_done_callback(self._lookups.discard)
            due = self._names.next_due
            try:
                async with asyncio.timeout(None if due == inf else max(0.0, due - loop.time())):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look_up(self, name: DnsName) -> None:
        loop = asyncio.get_running_loop()
        is_news = False
        try:
            is_news = self._names.resolved(name, await self._lookup(name), loop.time())
        except LookupFailed as error:
            self._names.failed(name, str(error), loop.time())
        except Exception as error:  # noqa: BLE001 - whatever it raises, the name is resolved again
            self._names.failed(name, repr(error), loop.time())
        self._wake.set()
        if is_news:
            self._note()
            _log.info("resolved", name=str(name), addresses=len(self.known))
        self._report()

    def _note(self) -> None:
        self.known = self._names.addresses
        if self.known:
            self._known.set()
        for on_change in list(self._listeners):
            try:
                on_change()
            except Exception:  # noqa: BLE001 - a client of several: the others follow the names all the same
                _log.exception("a listener to resolved names has failed")

    def _report(self) -> None:
        if not (problem := self._names.problem):
            self._warnings.reset()
        elif self._warnings.take(asyncio.get_running_loop().time()) is not None:
            _log.warning("a lookup found no addresses; those that are known stay", reason=problem)
