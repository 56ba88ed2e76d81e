"""Events as a table, as lines that follow one another, and as documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, TextIO

from slotmesh.cli.event_stream import MeshEvent
from slotmesh.cli.output import OutputForm, Printable, as_yaml
from slotmesh.cli.view.report import console_of, new_table
from slotmesh.printable_text import printable_text


def printable_events(events: Sequence[MeshEvent]) -> Printable:
    """Events that have happened, oldest first. Names are the subjects, once each."""
    return Printable(
        table=partial(_print, events),
        document=lambda: {"events": [event_document(it) for it in events]},
        names=lambda: dict.fromkeys(it.subject for it in events),
    )


def write_event(event: MeshEvent, form: OutputForm, out: TextIO) -> None:
    """One event of a stream without end: a line, or a document."""
    match form:
        case OutputForm.TABLE:
            line = f"{_clock(event)}  {event.kind:<22}  {event.subject}  {event.message}"
            out.write(f"{printable_text(line)}\n")
        case OutputForm.JSON:
            out.write(json.dumps(event_document(event)) + "\n")
        case OutputForm.YAML:
            out.write(as_yaml(event_document(event), explicit_start=True))
        case OutputForm.NAME:
            out.write(f"{printable_text(event.subject)}\n")
    out.flush()


def event_document(event: MeshEvent) -> dict[str, Any]:
    """Values of JSON. The time is ISO 8601 in UTC."""
    return {
        "time": event.time.isoformat(),
        "kind": event.kind,
        "subject": event.subject,
        "message": event.message,
        "cursor": event.cursor,
    }


def _print(events: Sequence[MeshEvent], out: TextIO) -> None:
    console = console_of(out)
    if not events:
        console.print("no such events")
        return
    table = new_table("Events", "time", "kind", "subject", "what")
    for it in events:
        table.add_row(_clock(it), it.kind, it.subject, it.message)
    console.print(table)
    console.print(f"what comes after these:  slotmesh events --after {events[-1].cursor}")


def _clock(event: MeshEvent) -> str:
    return event.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
