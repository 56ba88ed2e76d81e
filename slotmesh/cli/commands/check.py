"""`slotmesh check`: what is wrong with a mesh that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from slotmesh.cli.checking.finding import MeshFinding
from slotmesh.cli.checking.gathering import look_at
from slotmesh.cli.checking.judging import document_of, findings_of, is_well, not_answering
from slotmesh.cli.checking.printing import print_findings
from slotmesh.cli.checking.seen import IngressUrl
from slotmesh.cli.outcome import UNWELL, WRONG_INPUT, CommandFailed, complete
from slotmesh.cli.output import Output, OutputForm, Printable
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, read_address, read_duration
from slotmesh.errors import SlotmeshError

_AGAIN_AFTER_S = 1.0


def _ingress(text: str) -> IngressUrl:
    """A URL as typed, or HOST:PORT."""
    scheme, separator, rest = text.rpartition("://")
    address, _, path = rest.partition("/")
    if scheme not in ("http", "https", "") or (separator and not scheme) or path:
        raise typer.BadParameter(f"expected http://HOST:PORT or https://HOST:PORT, got {text!r}")
    by_tls = {"http": False, "https": True}.get(scheme)
    if scheme and ":" not in address.rpartition("]")[2]:
        address = f"{address}:{443 if by_tls else 80}"
    return IngressUrl(read_address(address), by_tls)


Patience = Annotated[
    timedelta | None,
    typer.Option(
        "--wait",
        parser=read_duration,
        metavar="DURATION",
        show_default=False,
        help="While something is wrong, check again for so long, as 1m after an upgrade.",
    ),
]


Ingresses = Annotated[
    list[IngressUrl] | None,
    typer.Option(
        "--http",
        parser=_ingress,
        metavar="URL",
        show_default=False,
        help="An ingress, of which no controller knows, as https://api.example.com or http://127.0.0.1:8080; may be "
        "given several times.",
    ),
]


def check(
    *,
    wait: Patience = None,
    http: Ingresses = None,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Look at a running mesh, and say what is wrong with it and what to do.

    Who leads; whether each address that is announced to others answers, is who it should be, and when its certificate
    ends; versions, clocks, open descriptors; whether routers have the newest routing table and links to all replicas,
    backends their replicas, endpoints somewhere to lead; of ingresses that are named with --http the same, and whether
    they are ready and know the newest routes. Addresses are tried from this machine: from another network
    some may not be reached that others reach.

    √ is well, ‼ a warning, × wrong. Exit status 0: nothing is wrong, though there may be warnings; 4: something is.

    Like this:

        slotmesh check --address 127.0.0.1:7070
        slotmesh check --http https://api.example.com
        slotmesh check --wait 1m --output json | jq '.findings[] | select(.severity != "ok")'
    """
    if output is OutputForm.NAME:
        raise typer.BadParameter("takes table, json or yaml", param_hint="--output")
    findings = complete(_check(address, http or [], 0.0 if wait is None else wait.total_seconds()))
    Printable(table=partial(print_findings, findings), document=partial(document_of, findings), names=tuple).write(
        output
    )
    if not is_well(findings):
        raise typer.Exit(UNWELL)


async def _check(address: str, ingresses: Sequence[IngressUrl], patience_s: float) -> list[MeshFinding]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            flags = "" if address == CONTROLLER else f"--address {address}"
            findings = findings_of(await look_at(address, ingresses), flags)
        except CommandFailed as failure:
            if failure.exit_code == WRONG_INPUT:
                raise
            findings = not_answering(str(failure))
        except SlotmeshError as failure:
            findings = not_answering(str(failure))
        if is_well(findings) or loop.time() >= deadline:
            return findings
        await asyncio.sleep(_AGAIN_AFTER_S)
