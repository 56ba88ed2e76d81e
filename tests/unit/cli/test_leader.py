"""What a command reports if no controller among its addresses leads."""

from __future__ import annotations

import pytest

from slotmesh.cli import connection
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.controller_view import ControllerStatus
from slotmesh.v1.info_service_pb2 import ControllerStanding

pytestmark = pytest.mark.asyncio
STOPPED, STANDBY, OTHER = "127.0.0.1:7070", "127.0.0.1:7170", "127.0.0.1:7270"


async def refusal(monkeypatch: pytest.MonkeyPatch, *standbys: ControllerStatus) -> str:
    """Of `STOPPED`, which does not answer, and these."""
    known = {it.address: it for it in standbys}

    async def ask(address: str) -> ControllerStatus:
        if address not in known:
            raise CommandFailed(f"no controller answers at {address}; start a mesh with `slotmesh run`")
        return known[address]

    monkeypatch.setattr(connection, "_ask", ask)
    monkeypatch.setattr(connection, "LEADS_WITHIN_S", 0.0)
    with pytest.raises(CommandFailed) as failed:
        await connection.leader_among([STOPPED, *known])
    return str(failed.value)


def standby(address: str, leader_address: str) -> ControllerStatus:
    return ControllerStatus(address, ControllerStanding(leader_address=leader_address))


async def test_a_leader_that_does_not_answer_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = await refusal(monkeypatch, standby(OTHER, ""), standby(STANDBY, STOPPED))
    first, _, way_out = text.partition("; ")
    assert first == f"{STOPPED} leads, as {STANDBY} reports, and does not answer"
    assert "kill its process" in way_out
    assert "stands by" in way_out
    assert "slotmesh run" not in text
    assert "no controller leads" not in text


async def test_a_leader_that_was_not_among_the_addresses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = await refusal(monkeypatch, standby(STANDBY, OTHER))
    assert f"{OTHER} leads" in text
    assert f"--address {STOPPED},{STANDBY},{OTHER}" in text


async def test_where_no_leader_is_known_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = await refusal(monkeypatch, standby(STANDBY, ""))
    assert text.startswith(f"no controller leads; standing by: {STANDBY}")


async def test_several_controllers_of_which_none_answers_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(address: str) -> ControllerStatus:
        raise connection.NoController([address])

    monkeypatch.setattr(connection, "_ask", ask)
    with pytest.raises(CommandFailed) as failed:
        await connection.leader_among([STOPPED, STANDBY])
    assert str(failed.value).startswith(f"no controller answers at {STOPPED} or {STANDBY}; name the one that runs with")
    assert str(failed.value).count("start it again") == 1
