"""`slotmesh rollout`: how replicas are being replaced; and to hold that, or roll it back."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Annotated, Literal

import typer

from slotmesh.cli.console import FAILED, NOT_IN_TIME, CommandFailed, say
from slotmesh.cli.credentials import connects
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, BackendName, ControllerAddress, duration
from slotmesh.cli.view.changes import (
    MOST_REVISIONS,
    NO_TIMES,
    resume_command,
    rollout_document,
    rollout_line,
    shown_version,
    version_times,
)
from slotmesh.cli.waiting import watch_operation
from slotmesh.errors import SlotmeshError
from slotmesh.spec.model import is_named_by_code
from slotmesh.units import format_duration
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import rollout_pb2
from slotmesh.v1.operations_pb2 import Operation

rollout = typer.Typer(
    name="rollout", no_args_is_help=True, help="Watch how replicas are replaced, hold that, or roll it back."
)


RolloutOutput = Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="What to print.")]


@rollout.command("status")
@connects
async def status(
    backend: BackendName,
    *,
    wait: Annotated[
        bool | None, typer.Option("--wait/--no-wait", help="Wait until it is complete. Default: on a terminal.")
    ] = None,
    timeout: Annotated[timedelta, duration("How long --wait may take.", show_default="10m")] = timedelta(minutes=10),
    output: RolloutOutput = "table",
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show how far the newest rollout of a backend is.

    Exit status 1: it failed, or the newest change was rolled back, and nothing was changed since: a script that deploys
    sees that its change is not in force, although all replicas are well. Also if a later change replaces it while it is
    waited for. 3: it is not complete in time.

    Like this:

        slotmesh rollout status digits-v1
        slotmesh rollout status digits-v1 --wait --timeout 2m --output json
    """
    waits = sys.stdout.isatty() and output == "table" if wait is None else wait
    found, operation = await _follow(backend, timeout if waits else None, address)
    say(json.dumps(rollout_document(found), indent=2) if output == "json" else rollout_line(found))
    if not operation.done:
        lines = [f"{backend}: not complete after {format_duration(timeout)}:", *operation.pending]
        raise CommandFailed("\n  ".join(lines), NOT_IN_TIME)
    if operation.failure:
        raise CommandFailed(f"{backend}: {operation.failure}")
    if found.rollback_reason or found.phase == rollout_pb2.ROLLOUT_PHASE_FAILING:
        raise typer.Exit(FAILED)


@rollout.command("pause")
@connects
async def pause(backend: BackendName, address: ControllerAddress = CONTROLLER) -> None:
    """Hold a rollout: old and new replicas stay as they are, until `rollout resume`.

    Where none is under way, the next change is held. `slotmesh status` and `slotmesh check` show it.
    """
    async with Operator.at(address) as operator:
        await operator.send(pb.PauseRolloutRequest(backend=backend))
    typer.echo(f"{backend}: paused, until {resume_command(backend)}")


@rollout.command("resume")
@connects
async def resume(backend: BackendName, address: ControllerAddress = CONTROLLER) -> None:
    """Let a rollout that was paused go on."""
    async with Operator.at(address) as operator:
        await operator.send(pb.PauseRolloutRequest(backend=backend, resume=True))
    typer.echo(f"{backend}: goes on")


@rollout.command("undo")
@connects
async def undo(backend: BackendName, address: ControllerAddress = CONTROLLER) -> None:
    """Bring back what replicas of a backend were started with before.

    Handler, version, user_config and the like become what they were; the rest stays. It is rolled out like any change.
    """
    async with Operator.at(address) as operator:
        revision = (await operator.send(pb.RollbackRequest(backend=backend))).revision
        try:
            it = await operator.backend(backend)
            is_by_code = is_named_by_code(it.version)
            times = version_times(await operator.revisions(MOST_REVISIONS)) if is_by_code else NO_TIMES
            version = f"{it.handler} {shown_version(it.version, times)}".strip()
        except (CommandFailed, SlotmeshError) as failure:
            typer.echo(f"slotmesh: done, but what is in force now cannot be read: {failure}", err=True)
            version = "what it was before"
    typer.echo(f"{backend}: goes back to {version}, revision {revision}")


async def _follow(backend: str, patience: timedelta | None, address: str) -> tuple[rollout_pb2.Rollout, Operation]:
    """The rollout, and how far it is as an operation. `patience`: how long to wait; None: not at all."""
    async with Operator.at(address) as operator:
        found = await operator.send(pb.GetBackendRequest(name=backend))
        if not found.backend.status.HasField("rollout"):
            raise CommandFailed(f"{backend}: this controller launches no replicas, so it has no rollouts")
        rollout = found.backend.status.rollout
        if patience is None or rollout.phase == rollout_pb2.ROLLOUT_PHASE_PAUSED:
            return rollout, Operation(done=True)
        operation = await watch_operation(operator, f"rollout/{backend}@{found.revision}", backend, patience)
        return (await operator.backend(backend)).status.rollout, operation
