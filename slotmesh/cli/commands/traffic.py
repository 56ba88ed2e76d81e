"""`slotmesh traffic`: shows, sets or shifts how the calls of an endpoint are divided among backends."""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final, TextIO, TypeAlias

import typer

from slotmesh.cli.console import (
    WRONG_INPUT,
    AsJson,
    CommandFailed,
    Output,
    OutputForm,
    Printable,
    TableColumns,
    console_of,
    form_of,
    table_of,
)
from slotmesh.cli.controller_view import Snapshot
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ENDPOINT, ControllerAddress, EndpointName, duration
from slotmesh.cli.shifting import (
    TrafficChange,
    change_shift,
    follow_shift,
    read_policy,
    shift_document,
    shift_lines,
)
from slotmesh.cli.view.replicas import readiness, shadow_troubles
from slotmesh.cli.waiting import after_change, wait_until_done
from slotmesh.spec.model import InvalidSpec
from slotmesh.v1 import traffic_shift_pb2 as shift_pb


def print_traffic(
    endpoint: str, revision: int, snapshot: Snapshot, shift: shift_pb.TrafficShift | None, out: TextIO
) -> None:
    """Writes the policy, a row a backend, and where it is in force. Colours only where `out` is a terminal."""
    console = console_of(out)
    console.print(f"endpoint {endpoint}  revision {revision}, {_in_force(revision, snapshot)}")
    traffic = snapshot.traffic_of(endpoint)
    if services := _services_of(endpoint, snapshot):
        console.print(f"grpc services: {', '.join(services)}", soft_wrap=True, markup=False, highlight=False)
    if traffic is None:
        console.print("no traffic policy: calls wait until there is one")
        return
    backends = {backend.name: backend for backend in snapshot.backends}
    columns: TableColumns[str] = {
        "backend": lambda name: name,
        "weight": lambda name: _share(traffic.weights.get(name)),
        "shadow": lambda name: _share(traffic.shadows.get(name)),
        "ready": lambda name: (
            readiness(len(snapshot.members.ready(name)), snapshot.wanted(backends[name])) if name in backends else ""
        ),
    }
    console.print(table_of("Traffic", columns, sorted({*traffic.weights, *traffic.shadows})))
    for name in sorted(traffic.shadows):
        for trouble in shadow_troubles(name, snapshot.members):
            console.print(trouble)
    for line in shift_lines(shift) if shift is not None else ():
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def as_json(endpoint: str, revision: int, snapshot: Snapshot, shift: shift_pb.TrafficShift | None) -> dict[str, Any]:
    """The same, as values of JSON. `revision` is in force at the routers that are `current`."""
    traffic = snapshot.traffic_of(endpoint)
    shadows = sorted(traffic.shadows) if traffic else []
    behind = snapshot.members.behind(revision)
    return {
        "endpoint": endpoint,
        "revision": revision,
        "traffic": dict(sorted(traffic.weights.items())) if traffic else None,
        "shadows": dict(sorted(traffic.shadows.items())) if traffic else {},
        "grpc_services": _services_of(endpoint, snapshot),
        "shadow_copies": {name: snapshot.members.shadow(name).copies for name in shadows},
        "shadow_drops": {name: snapshot.members.shadow(name).dropped for name in shadows},
        "shadow_failures": {name: snapshot.members.shadow(name).failed for name in shadows},
        "routers": [
            {
                "router_id": router.router_id,
                "address": router.address,
                "current": router not in behind and not snapshot.is_on_hold,
            }
            for router in snapshot.members.routers
        ],
        "shift": None if shift is None else shift_document(shift),
    }


def _services_of(endpoint: str, snapshot: Snapshot) -> list[str]:
    """The services of users' own protos that it answers."""
    found = next((it.grpc_services for it in snapshot.endpoints if it.name == endpoint), None)
    return [] if found is None else list(found.names)


def _in_force(revision: int, snapshot: Snapshot) -> str:
    routers = snapshot.members.routers
    if snapshot.is_on_hold:
        return "stored; the controller is on hold, and routers go on with tables of a newer state (`slotmesh status`)"
    if not routers:
        return "no router is attached"
    current = len(routers) - len(snapshot.members.behind(revision))
    return f"in force at {current} of {len(routers)} {'router' if len(routers) == 1 else 'routers'}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.6g}"


ShownTraffic: TypeAlias = tuple[int, Snapshot, shift_pb.TrafficShift | None]
"""A revision of the configuration, the mesh, and the newest shift of the endpoint."""

Shadows = Annotated[
    list[str] | None,
    typer.Option(
        metavar="BACKEND=SHARE",
        help="A backend that gets a copy of that share of the calls; replaces all shadows. Repeat it for more.",
    ),
]
ShiftTo = Annotated[
    list[str] | None,
    typer.Option(
        metavar="BACKEND=WEIGHT",
        help="Shift to this weight step by step; the other backends share what is left. Repeat it for more.",
    ),
]
ShiftStep = Annotated[
    float | None, typer.Option(metavar="SHARE", help="By how much weights change in a step.", show_default="0.1")
]
ShiftEvery = Annotated[timedelta | None, duration("How long a step lasts at least.", show_default="30s")]
ShiftGuards = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE=LIMIT",
        help="Go back when error_rate=SHARE or p99=DURATION of a backend that gets more is above this; of a shadow with"
        " its name before it, as dark:error_rate=0.05. Repeat it.",
    ),
]
ShiftMinCalls = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=1_000_000,
        help="Calls that must have ended in a step for guards to pass it.",
        show_default="100",
    ),
]
StopShift = Annotated[bool, typer.Option("--shift-stop", help="End the shift where it is.")]
BackShift = Annotated[bool, typer.Option("--shift-back", help="End the shift, with the weights before it.")]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Return when the change is in force at every router, or at once; of a shift, when it has got there "
        "(default: on a terminal).",
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Give calls to backends that have no ready replica, too: without this it is refused."),
]
Timeout = Annotated[
    timedelta | None, duration("How long --wait may take.", show_default="10s; of a shift, until it ends")
]
PATIENCE: Final = timedelta(seconds=10)


async def traffic(
    endpoint: EndpointName,
    weights: Annotated[
        list[str] | None, typer.Argument(metavar="BACKEND=WEIGHT", help="All weights of the endpoint, which sum to 1.")
    ] = None,
    *,
    shadow: Shadows = None,
    no_shadows: Annotated[bool, typer.Option("--no-shadows", help="Take all shadows away.")] = False,
    shift: ShiftTo = None,
    step: ShiftStep = None,
    every: ShiftEvery = None,
    guard: ShiftGuards = None,
    min_calls: ShiftMinCalls = None,
    shift_stop: StopShift = False,
    shift_back: BackShift = False,
    force: Force = False,
    wait: Wait = None,
    timeout: Timeout = None,
    as_document: AsJson = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show or change how the calls of an endpoint are divided.

    The weights that are given become all weights of the endpoint, at once: a backend that is not named gets no new
    calls. They sum to 1, or nothing is changed. Shadows stay as they are unless `--shadow` or `--no-shadows` says
    otherwise. Each router changes over between two calls; none is lost. A change that gives more calls to a backend
    without a ready replica is refused, unless with --force; one that its autoscaling has scaled to zero is accepted.

    With --shift the controller gets there step by step, and goes back by itself when a guard trips (exit status 3 with
    --wait).

    Like this:

        slotmesh traffic digits
        slotmesh traffic digits v1=0.9 v2=0.1
        slotmesh traffic digits v1=1 --shadow v2=0.2
        slotmesh traffic digits --shift v2=1.0 --step 0.1 --every 30s --guard error_rate=0.01 --guard p99=200ms
    """
    form = form_of(output, as_document)
    of_policy = (weights or [], shadow or [], no_shadows)
    asked = TrafficChange(*of_policy, shift or [], step, every, guard or [], min_calls, shift_stop, shift_back, force)
    waits = wait is not False
    if shift and wait is None:
        waits = sys.stdout.isatty() and form is OutputForm.TABLE
    shown = await _carry_out(endpoint, asked, waits, timeout, address)
    Printable(
        table=partial(print_traffic, endpoint, *shown),
        document=partial(as_json, endpoint, *shown),
        names=lambda: [f"{ENDPOINT}/{endpoint}"],
    ).write(form)


async def _carry_out(
    endpoint: str, asked: TrafficChange, waits: bool, timeout: timedelta | None, address: str
) -> ShownTraffic:
    """What is there after the change, if one is asked for."""
    asked.check(endpoint)
    async with Operator.at(address) as operator:
        has_weights = bool((await operator.endpoint(endpoint)).traffic.weights)
        if asked.is_of_shift:
            revision = await change_shift(operator, endpoint, asked)
        elif asked.is_of_policy:
            revision = await _set_traffic(operator, endpoint, asked, has_weights=has_weights)
            timeout = (timeout or PATIENCE) if waits else None
        else:
            snapshot = await operator.snapshot()
            return snapshot.revision, snapshot, await operator.shift(endpoint)
        done, look = f"{endpoint}: stored as revision {revision}", f"slotmesh traffic {endpoint}"
        with after_change(operator, done, look, timeout):
            if asked.to and waits:
                await follow_shift(operator, endpoint, timeout)
            elif asked.is_of_policy and timeout is not None:
                await wait_until_done(operator, [f"revision/{revision}"], timeout, f"{done}, but not in force")
            snapshot = await operator.snapshot()
            revision = snapshot.revision if asked.to and waits else revision
            return revision, snapshot, await operator.shift(endpoint)


async def _set_traffic(operator: Operator, endpoint: str, asked: TrafficChange, *, has_weights: bool) -> int:
    backends = [it.name for it in (await operator.configuration()).backends]
    try:
        policy, fields = read_policy(
            endpoint,
            asked.weights,
            asked.shadows,
            no_shadows=asked.no_shadows,
            has_weights=has_weights,
            backends=backends,
        )
    except InvalidSpec as invalid:
        lines = [f"{endpoint}: nothing was changed", *str(invalid).splitlines()]
        raise CommandFailed("\n  ".join(lines), WRONG_INPUT) from invalid
    return await operator.set_traffic(endpoint, policy, fields, require_ready=not asked.forces)
