"""The executors of one handler, and which of them executes which method.

Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replica_service.core.calls import RouterPeer
from replica_service.shell.executors.generators import GeneratorExecutor
from replica_service.shell.executors.on_loop import AsyncExecutor
from replica_service.shell.executors.own_loop import OwnLoopExecutor
from replica_service.shell.executors.protocol import Executor, OutcomeSink
from replica_service.shell.executors.threads import ThreadExecutor
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.handler_loop import HandlerLoop, SharedLoop
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.handlers import MethodKind
from slotmesh.runtime.pump import WokenPumps


class ExecutorSet:
    """One executor for each kind of method."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        sink: OutcomeSink,
        errors: HandlerErrors,
        now: Callable[[], float],
        max_ongoing: Callable[[], int],
        handler_loop: HandlerLoop | None,
        woken: WokenPumps,
    ) -> None:
        """`max_ongoing` bounds threads. `handler_loop` is where `async def` methods run; None: on this loop.

        `woken`: streams of this loop that write outcomes.
        """
        handler_loop = handler_loop or SharedLoop()
        self.of_async = (
            OwnLoopExecutor(methods, sink, errors, now, handler_loop)
            if handler_loop.is_own
            else AsyncExecutor(methods, sink, errors, now, woken=woken)
        )
        self.threads = ThreadExecutor(methods, sink, errors, now, max_ongoing, handler_loop.wait_for)
        self.generators = GeneratorExecutor(methods, sink, errors, now, self.threads.step, handler_loop)
        by_kind: dict[MethodKind, Executor] = {MethodKind.ASYNC: self.of_async, MethodKind.DEF: self.threads}
        self.by_method: dict[str, Executor] = {
            name: by_kind.get(method.kind, self.generators) for name, method in methods.items()
        }
        self.all: tuple[Executor, ...] = (self.of_async, self.threads, self.generators)

    def abandon(self, link: RouterPeer) -> None:
        """The link has ended."""
        for executor in self.all:
            executor.abandon(link)

    def cut_off(self) -> None:
        """The grace is over: cancels all that runs."""
        for executor in self.all:
            executor.cut_off()

    async def close(self) -> None:
        """Ends what still runs."""
        await self.of_async.close()
        await self.generators.close()
        await self.threads.close()
