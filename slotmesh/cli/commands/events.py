"""`slotmesh events`: what has happened in the mesh, and what happens."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import aclosing
from typing import Annotated

import typer

from slotmesh.cli.event_stream import EVENT_KINDS, EventFilter, MeshEvent
from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import complete
from slotmesh.cli.output import Output, OutputForm
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress
from slotmesh.cli.subjects import KINDS, REVISION
from slotmesh.cli.view.happenings import printable_events, write_event
from slotmesh.suggestions import did_you_mean


def _kind(text: str) -> str:
    name = text.lower().replace("_", "-")
    if name not in EVENT_KINDS:
        way_out = did_you_mean(name, EVENT_KINDS) or f"; there are {', '.join(EVENT_KINDS)}"
        raise typer.BadParameter(f"{text!r} is no kind of events{way_out}")
    return name


def _subject(text: str) -> str:
    if text and "/" not in text and not text.endswith("*"):
        way_out = " or ".join(f"{kind}/{text}" for kind in KINDS if kind != REVISION)
        raise typer.BadParameter(f"takes a subject with its kind, as {way_out}, is {text}")
    return text


def events(
    subject: Annotated[
        str,
        typer.Argument(
            parser=_subject,
            metavar="SUBJECT",
            help="Only events of `replica/ID`, `backend/NAME`, `endpoint/NAME` or `router/ID`; of all that begin so"
            " with a `*` at the end. None: of all.",
            show_default=False,
        ),
    ] = "",
    *,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            parser=_kind,
            metavar="KIND",
            help="Only events of this kind, as replica-failed. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str,
        typer.Option(
            metavar="CURSOR", help="Only events after that one: its `cursor` in JSON or YAML.", show_default=False
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The newest of them; 0: all.")] = 100,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show what has happened, oldest first.

    The controller keeps the newest 10,000 events; with a state file, those of earlier controllers are among them. With
    `--follow`, JSON is one document a line, and YAML one document for each event.

    Like this:

        slotmesh events --kind replica-failed --kind replica-exited
        slotmesh events 'replica/digits-v1-*' --follow -o json
    """
    wanted = EventFilter(kinds=tuple(kind or ()), subject=subject)
    try:
        complete(_show(address, wanted, after=after, lines=lines, follow=follow, form=output))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _show(address: str, wanted: EventFilter, *, after: str, lines: int, follow: bool, form: OutputForm) -> None:
    async with Operator.at(address) as operator:
        newest: deque[MeshEvent] = deque(maxlen=lines or None)
        async with aclosing(operator.events(wanted, after=after)) as past:
            async for event in past:
                _tell_missed(event)
                newest.append(event)
        if not follow:
            printable_events(newest).write(form)
            return
        for event in newest:
            write_event(event, form, sys.stdout)
        seen = newest[-1].cursor if newest else after
        async with aclosing(operator.events(wanted, after=seen, follow=True)) as coming:
            async for event in coming:
                _tell_missed(event)
                write_event(event, form, sys.stdout)


def _tell_missed(event: MeshEvent) -> None:
    if event.missed:
        count = "some" if event.missed < 0 else event.missed
        typer.echo(f"slotmesh: {count} events before this one are not kept any more", err=True)
