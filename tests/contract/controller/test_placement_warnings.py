"""What the controller says of settings of processes: of replicas that others start, and when a mesh is applied."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from slotmesh.cli.checking.findings import SeenMesh
from slotmesh.cli.checking.member_findings import backends as backend_findings
from slotmesh.cli.operator import Operator
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.controllers import running_controller
from tests.support.fakes.members import FakeReplica

pytestmark = pytest.mark.asyncio

HEAD = "its process differs from what its backend wants: "


def facts(**changes: object) -> membership_service_pb2.ProcessFacts:
    found = {"python": "/venv/bin/python", "prefix": "/venv", "cwd": "/srv", "cpus": 2.0, "variables": ["A"]} | changes
    return membership_service_pb2.ProcessFacts(**found)  # type: ignore[arg-type]


async def test_replicas_that_another_system_starts_are_compared_with_their_backend() -> None:
    reported = {
        "right": facts(),
        "wrong": facts(cwd="/", cpus=64.0, variables=["B"]),
        "older": None,
        "odd": facts(cpus=-1.0, cwd="/srv", memory=-5, variables=["A", "N" * 1000]),
    }
    async with running_controller() as mesh, AsyncExitStack() as stack:
        await mesh.apply("backends: {v1: {python: /venv, cwd: /srv, cpus: 2, env: {A: hunter-2}}}")
        for name, it in reported.items():
            replica = FakeReplica(mesh.channel, "v1", name)
            replica.process_facts = it
            await stack.enter_async_context(replica)
            await replica.report("READY")
        warnings = {name: it.warning for name, it in (await mesh.replicas()).items()}
        wrong = f"{HEAD}its cwd is /, not /srv; it may use 64 cpus, not 2; it lacks the variables A"
        assert warnings == {"right": "", "wrong": wrong, "older": "", "odd": ""}
        async with Operator.at(mesh.controller.address) as operator:
            snapshot = await operator.snapshot()
        findings = [*backend_findings(SeenMesh(now=0.0, own_version="", snapshot=snapshot, answers=()))]
        assert [it.subject for it in findings if HEAD in it.text] == ["replica/wrong"]


async def test_apply_warns_of_a_secret_in_the_configuration_and_not_with_its_value() -> None:
    async with running_controller(launches=True) as mesh:
        spec = parse_mesh("backends: {v1: {handler: 'app:Digits', env: {API_TOKEN: hunter-2, MODE: fast}}}")
        applied = await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=mesh_to_wire(spec)))
    (warning,) = applied.warnings
    assert warning.startswith("backend/v1 has env.API_TOKEN as plain text")
    assert "hunter-2" not in warning
