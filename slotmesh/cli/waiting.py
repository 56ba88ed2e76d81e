"""Waits for what follows from a change, and reports meanwhile what is lacking.

The controller decides what is done, has failed or is lacking (`WaitOperations`); commands print it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from typing import Annotated, Final

import typer

from slotmesh.cli.console import FAILED, NOT_IN_TIME, CommandFailed, ProgressBar, is_interactive, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import duration
from slotmesh.cli.view.changes import shown_version
from slotmesh.errors import SlotmeshError
from slotmesh.units import format_duration
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1.operations_pb2 import Operation

LOOK_S: Final = 1.0
"""How long the controller waits before it returns what is lacking, so that it can be printed."""
HOLD_ON_S: Final = 30.0
"""How long a command that waits after its change looks for the controller that leads, each time a connection broke."""

WaitForReady = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Return when all replicas are ready and all routers reach them, or at once.",
        show_default="--wait on a terminal",
    ),
]
Patience = Annotated[timedelta, duration("How long --wait may take.", show_default="2m")]
DEFAULT_PATIENCE: Final = timedelta(minutes=2)


def patience_of(wait: bool | None, timeout: timedelta) -> timedelta | None:
    """How long to wait for what follows from a change; None: not at all."""
    return timeout if (is_interactive() if wait is None else wait) else None


@contextmanager
def after_change(operator: Operator, done: str, look: str, patience: timedelta | None) -> Iterator[None]:
    """A block that waits for the effects of an applied change, even if another controller leads meanwhile.

    `done`: the change, as `applied as revision 12`. `look`: the command that shows its progress. A failure in the block
    is no failure of the change: it is raised as CommandFailed, with the exit status for that.
    """
    if operator.is_on_hold:
        raise CommandFailed(f"{done}, and stored; the controller is on hold: there is nothing to wait for", NOT_IN_TIME)
    within_s = HOLD_ON_S if patience is None else min(HOLD_ON_S, patience.total_seconds())
    operator.hold_on(within_s)
    try:
        yield
    except (CommandFailed, SlotmeshError) as failure:
        if isinstance(failure, CommandFailed) and failure.exit_code != FAILED:
            raise
        lines = [f"{done}, but how it goes on is not known:", str(failure), f"see `{look}`"]
        raise CommandFailed("\n  ".join(lines), NOT_IN_TIME) from failure
    finally:
        operator.hold_on(0.0)


def operations_of(applied: pb.ApplyMeshResponse, backends: Collection[str]) -> list[str]:
    """What follows from a change, also for backends that were as they should be already."""
    rollouts = (f"rollout/{it}@{applied.revision}" for it in sorted(backends))
    return [f"revision/{applied.revision}", *rollouts, *(f"shift/{it.endpoint}" for it in applied.waits)]


async def follow_operations(
    operator: Operator, names: Sequence[str], patience: timedelta | None
) -> AsyncIterator[tuple[list[Operation], bool]]:
    """The operations as they are, every `LOOK_S` or once all are done; and whether `patience` is over. None: never."""
    loop, timeout_s = asyncio.get_running_loop(), 0.0
    until = inf if patience is None else loop.time() + patience.total_seconds()
    while True:
        operations = await operator.operations(names, timeout_s)
        left_s = until - loop.time()
        yield operations, left_s <= 0.0
        timeout_s = min(LOOK_S, max(0.0, left_s))


async def watch_operation(operator: Operator, name: str, title: str, patience: timedelta | None) -> Operation:
    """Shows on a terminal how far an operation is, until it is done or `patience` is over. None: never."""
    with ProgressBar(sys.stdout) as bar:
        async for (operation,), is_late in follow_operations(operator, [name], patience):
            bar.show(title, operation.completed, operation.total, "; ".join(operation.pending))
            if operation.done or is_late:
                return operation
    raise AssertionError("the last look returns")


async def wait_for_backends(
    operator: Operator,
    applied: pb.ApplyMeshResponse,
    backends: Collection[str],
    patience: timedelta,
    *,
    done: str,
    rolled_back: Sequence[str] = (),
) -> None:
    """Waits for the effects of a change on these backends, as `wait_until_ready`."""
    with after_change(operator, f"{done}, revision {applied.revision}", "slotmesh status", patience):
        names = operations_of(applied, backends)
        await wait_until_ready(operator, names, patience, done=done, rolled_back=rolled_back)


async def wait_until_ready(
    operator: Operator, names: Sequence[str], patience: timedelta, *, done: str, rolled_back: Sequence[str] = ()
) -> None:
    """Waits for these operations, and prints what they lack.

    Raises:
        CommandFailed: they are not done in time, or one has failed. `done`, as `applied`, is what was done all the
            same. `rolled_back`: what will not be in force, as it was rolled back before, a line each.
    """
    printed: Collection[str] = ()
    async for operations, is_late in follow_operations(operator, names, patience):
        if rolled_back:
            raise await _not_ready(operator, f"{done}, and rolled back:", rolled_back, operations)
        if failed := [f"{_subject(it)}: {it.failure}{_log_of(it)}" for it in operations if it.failure]:
            raise await _not_ready(operator, f"{done}, but failed:", failed, operations)
        if all(it.done for it in operations):
            break
        lacking = lines_of(operations)
        if is_late:
            title = f"{done}, but not ready within {format_duration(patience)}:"
            raise await _not_ready(operator, title, lacking, operations)
        for line in lacking:
            if line not in printed:
                say(f"slotmesh: {line}", err=True)
        printed = lacking
    typer.echo("slotmesh: ready", err=True)


async def wait_until_done(operator: Operator, names: Sequence[str], patience: timedelta, late: str) -> None:
    """Waits for these operations. Raises CommandFailed if they fail, or are late: `late`, and why."""
    async for operations, is_late in follow_operations(operator, names, patience):
        if failures := [it.failure for it in operations if it.failure]:
            raise CommandFailed(f"{late}: {failures[0]}", NOT_IN_TIME)
        if all(it.done for it in operations):
            return
        if is_late:
            title = f"{late} within {format_duration(patience)}:"
            raise CommandFailed("\n  ".join([title, *lines_of(operations)]), NOT_IN_TIME)


def lines_of(operations: Sequence[Operation]) -> list[str]:
    """What operations lack, each line once."""
    return [*dict.fromkeys(line for it in operations for line in it.pending)]


def backend_of(operation: Operation) -> str:
    """The backend of a rollout; empty for other operations."""
    kind, _, rest = operation.name.partition("/")
    return rest.rpartition("@")[0] if kind == "rollout" else ""


def _subject(operation: Operation) -> str:
    kind, _, rest = operation.name.partition("/")
    return backend_of(operation) or (f"traffic of {rest}" if kind == "shift" else "routers")


def _log_of(failed: Operation) -> str:
    """Where the output of a process is that has ended by itself."""
    name = backend_of(failed)
    return f"; what it wrote: `slotmesh logs {name}`" if name and " exited with status " in failed.failure else ""


async def _not_ready(
    operator: Operator, title: str, lines: Sequence[str], operations: Sequence[Operation]
) -> CommandFailed:
    """The failure, with what the other backends of the same change lack, or run."""
    named = {line.partition(":")[0] for line in lines}
    if others := [it for it in operations if backend_of(it) and backend_of(it) not in named]:
        runs = {it.name: it for it in (await operator.configuration()).backends}
        lines = [*lines, "the other backends of this change:"]
        for it in others:
            name = backend_of(it)
            of = f"{runs[name].handler} {shown_version(runs[name].version)}".strip() if name in runs else ""
            ready = f"{name}: ready, with {it.completed} replicas{' of ' if of else ''}{of}"
            lines += [f"  {each}" for each in it.pending if each.startswith(f"{name}:")] or [f"  {ready}"]
    return CommandFailed("\n  ".join([title, *lines]), NOT_IN_TIME)
