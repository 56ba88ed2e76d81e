"""Members that the controller loses: its events say why, and `check` names those that have not come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.controllers import eventually
from tests.support.shell import slotmesh
from tests.support.tls_mesh import tls_mesh

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]


@pytest.mark.parametrize(("member", "subject"), [("router", "router/r0"), ("replica", "replica/r-0")])
async def test_a_member_whose_certificate_was_taken_back_is_named_with_that(
    member: str, subject: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.issue("operator", "ops")
    async with tls_mesh(authority) as mesh:
        at = ("--tls-dir", str(tmp_path), "--address", mesh.controller.address)
        if member == "replica":
            subject = f"replica/{next(iter(mesh.controller.state.observed.replicas())).replica_id}"
        authority.revoke(tmp_path / f"{member}.crt")

        async def is_named() -> bool:
            said = await slotmesh("check", *at)
            lines = [line for line in said.out.splitlines() if f"{subject} was lost at" in line]
            return bool(lines) and "revoked" in lines[0]

        await eventually(is_named, what="the check names it, and why it was lost", timeout=60)
        told = await slotmesh("events", subject, *at)
        assert "the controller ended its stream" in told.out
