"""`slotmesh drain`: lets replicas finish their running calls, and end."""

from __future__ import annotations

from typing import Annotated

import typer

from slotmesh.cli.console import Output, OutputForm, say, write_subjects
from slotmesh.cli.controller_view import ENDED
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, REPLICA, ControllerAddress, ReplicaIds, unknown
from slotmesh.cli.waiting import DEFAULT_PATIENCE, Patience, after_change, wait_until_done
from slotmesh.errors import ReplicaNotFound


async def drain(
    replicas: ReplicaIds,
    *,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when they have ended, or at once.")] = False,
    timeout: Patience = DEFAULT_PATIENCE,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Drain replicas: they take no new calls, finish what runs, and end.

    Those that the controller has started are replaced at once; `slotmesh scale` makes them fewer. A replica that is
    draining already goes on with that. Exit status 3 where `--wait` has seen it draining for too long: calls run for
    `graceful_timeout` of its backend at most.

    Like this:

        slotmesh drain digits-v1-7n9nzx --wait
        slotmesh drain $(slotmesh status -o name | grep replica/digits-v1-)
    """
    replicas = list(dict.fromkeys(replicas))
    async with Operator.at(address) as operator:
        there = {it.replica_id for it in (await operator.members()).replicas if it.state not in ENDED}
        for replica_id in replicas:
            if replica_id not in there:
                raise unknown(f"{REPLICA}/{replica_id}", [f"{REPLICA}/{it}" for it in there])
        drains: list[str] = []
        for replica_id in replicas:
            try:
                drains += await operator.drain(replica_id)
            except ReplicaNotFound:
                say(f"slotmesh: {REPLICA}/{replica_id} has ended meanwhile", err=True)
        if wait and drains:
            with after_change(operator, "draining", "slotmesh status", timeout):
                await wait_until_done(operator, drains, timeout, "draining, but not ended")
    write_subjects(output, "drained" if wait else "draining", [f"{REPLICA}/{it}" for it in replicas])
