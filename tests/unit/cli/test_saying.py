"""What commands print of others steers no terminal: neither in lines, nor in tables, nor in the live view."""

from __future__ import annotations

import io

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slotmesh.cli.commands.events import printable_events, write_event
from slotmesh.cli.console import CommandFailed, OutputForm, PrintableConsole, complete, say
from slotmesh.v1 import controller_service_pb2 as pb

FORGED = "\x1b[2Kforged\r\x9b1m\x85\u2028\u202e"
SHOWN = r"\x1b[2Kforged\r\x9b1m\x85\u2028\u202e"


def steers(text: str) -> bool:
    return any(not each.isprintable() and each != "\n" for each in text)


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"first\n{FORGED}")
    say(FORGED, err=True)
    assert capsys.readouterr() == (f"first\n{SHOWN}\n", f"{SHOWN}\n")


def test_failures_that_servers_tell(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise CommandFailed(FORGED)

    with pytest.raises(Exception, match="1"):
        complete(fail())
    assert capsys.readouterr().err == f"{SHOWN}\n"


def test_tables_and_texts() -> None:
    out = io.StringIO()
    console = PrintableConsole(file=out, width=200)
    table = Table("name", title=FORGED)
    table.add_row(FORGED)
    console.print(table)
    console.print(Text(f"Traceback\n  {FORGED}"))
    console.print(f"controller {FORGED}")
    assert not steers(out.getvalue())
    assert out.getvalue().count(r"\x1b[2Kforged") == 4


def test_what_steers_is_the_consoles_own() -> None:
    out = io.StringIO()
    console = PrintableConsole(file=out, width=200, force_terminal=True, color_system="standard")
    with Live(Text(FORGED, style="red"), console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
    text = out.getvalue()
    assert "\x1b[31m" in text, "its colours"
    assert "\x1b[?1049h" in text, "its screen"
    assert r"\x1b[2Kforged" in text
    assert "\x1b[2Kforged" not in text


@pytest.mark.parametrize("form", OutputForm)
def test_events(form: OutputForm) -> None:
    event = pb.WatchEventsResponse(
        kind=pb.EVENT_KIND_REPLICA_FAILED,
        resource=f"replica/{FORGED}",
        message=FORGED,
        cursor="c-1",
    )
    past, coming = io.StringIO(), io.StringIO()
    printable_events([event]).write(form, past)
    write_event(event, form, coming)
    for text in (past.getvalue(), coming.getvalue()):
        assert "c-1" in text or "replica/" in text
        assert "\x1b" not in text
        assert "\x9b" not in text
