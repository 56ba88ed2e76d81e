"""`slotmesh scale`: how many replicas a backend should have."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Annotated

import typer

from slotmesh.cli.console import Output, OutputForm, complete, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, ControllerAddress, DryRun, name_of, unknown
from slotmesh.cli.view.changes import difference, printable_change
from slotmesh.cli.waiting import (
    DEFAULT_PATIENCE,
    Patience,
    WaitForReady,
    after_change,
    ends_of_rollouts,
    wait_until_ready,
)
from slotmesh.errors import BackendNotFound


def scale(
    backend: Annotated[
        str, typer.Argument(parser=name_of(BACKEND), metavar="BACKEND", help="The backend's name.", show_default=False)
    ],
    replicas: Annotated[
        int, typer.Argument(metavar="N", min=0, help="How many replicas it should have.", show_default=False)
    ],
    *,
    dry_run: DryRun = False,
    wait: WaitForReady = None,
    timeout: Patience = DEFAULT_PATIENCE,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Set how many replicas a backend should have.

    Only `num_replicas` is changed, whatever else is changed meanwhile. A file that was applied before and is applied
    again leaves it so, unless its own `num_replicas` has changed. Replicas that are too many drain. Where others start
    the replicas (`--launcher external`), the number is what `slotmesh status` shows beside those that are there.

    Like this:

        slotmesh scale digits-v1 4
        slotmesh scale backend/digits-v1 0 --dry-run
    """
    waits = sys.stdin.isatty() and sys.stderr.isatty() if wait is None else wait
    complete(_scale(backend, replicas, dry_run, timeout if waits and not dry_run else None, output, address))


async def _scale(
    backend: str, replicas: int, dry_run: bool, patience: timedelta | None, output: OutputForm, address: str
) -> None:
    async with Operator.at(address) as operator:
        try:
            ended = await ends_of_rollouts(operator) if patience is not None else {}
            applied = await operator.scale(backend, replicas, dry_run=dry_run)
        except BackendNotFound as error:
            known = [f"{BACKEND}/{it.name}" for it in (await operator.configuration()).backends]
            raise unknown(f"{BACKEND}/{backend}", known) from error
        for line in difference(applied):
            say(line, err=True)
        printable_change(applied, is_planned=dry_run).write(output)
        if patience is not None:
            with after_change(operator, f"scaled, revision {applied.revision}", "slotmesh status", patience):
                await wait_until_ready(operator, {backend}, applied.revision, patience, done="scaled", ended=ended)
