"""Operators' commands against a real controller: what they print, and what they say when something is wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from slotmesh import HandlerError
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.controllers import running_controller
from tests.support.fakes.router import FakeRouter
from tests.support.fakes.router_batches import Batch
from tests.support.shell import Said, slotmesh

MESH = """
backends:
  v1: {handler: "app:Digits", num_replicas: 2}
  v2: {handler: "app:Digits"}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""
SMALLER = """
backends:
  v1: {handler: "app:Digits", num_replicas: 3}
"""
WRONG = """
backends:
  v1: {handler: nonsense, num_replicas: -1, colour: red}
endpoints:
  digits: {traffic: {v1: 0.5}}
"""
NOBODY = "127.0.0.1:1"
"""Nothing listens there, and nobody but root could."""


@pytest.mark.asyncio
async def test_a_mesh_is_applied_shown_and_pruned(tmp_path: Path) -> None:
    file = tmp_path / "mesh.yaml"
    async with running_controller() as mesh:
        env = {"SLOTMESH_ADDRESS": mesh.controller.address}
        file.write_text(MESH)
        applied = await slotmesh("apply", str(file), env=env)
        *lines, revision = applied.out.splitlines()
        assert applied.status == 0
        assert applied.err.endswith(f"how they do:  slotmesh status --address {mesh.controller.address}\n")
        assert lines == ["created   backend/v1", "created   backend/v2", "created   endpoint/digits"]
        assert revision.split()[0] == "revision"
        file.write_text(SMALLER)
        unpruned = await slotmesh("apply", str(file), env=env)
        assert (unpruned.status, unpruned.out.splitlines()[:-1]) == (0, ["updated   backend/v1"])

        status, document, health = await asyncio.gather(
            slotmesh("status", env=env),
            slotmesh("status", "--json", env=env),
            slotmesh("health", env=env),
        )
        assert status.status == 0
        assert "0/3" in status.out
        assert "0/any" in status.out
        assert "digits" in status.out
        assert [backend["name"] for backend in json.loads(document.out)["backends"]] == ["v1", "v2"]
        assert health == Said(1, f"{mesh.controller.address} NOT_SERVING\n", "")  # the test has not opened it
        mesh.controller.server.set_serving()
        assert await slotmesh("health", env=env) == Said(0, f"{mesh.controller.address} SERVING\n", "")
        healthy = json.loads((await slotmesh("health", "-o", "json", env=env)).out)
        assert healthy == {"address": mesh.controller.address, "status": "SERVING", "serving": True}

        pruned = await slotmesh("apply", "--prune", "-", stdin=SMALLER, env=env)
        assert pruned.out.splitlines()[:-1] == [
            "unchanged backend/v1",
            "deleted   endpoint/digits",
            "deleted   backend/v2",
        ]


@pytest.mark.long
@pytest.mark.asyncio
async def test_what_is_wanted_is_shown_where_the_controller_launches() -> None:
    async with running_controller(launches=True) as mesh:
        env = {"SLOTMESH_ADDRESS": mesh.controller.address}
        endpoints_only = await slotmesh("apply", "-", env=env, stdin="endpoints: {digits: {}}")
        assert (endpoints_only.status, endpoints_only.err) == (0, "+ endpoint/digits\n")
        await mesh.apply('backends: {v1: {handler: "app:Digits"}}')
        await mesh.wait_for_launches(1)
        status, document = await asyncio.gather(slotmesh("status", env=env), slotmesh("status", "--json", env=env))
        assert "0/1" in status.out
        (backend,) = json.loads(document.out)["backends"]
        assert (backend["num_replicas"], backend["wanted_replicas"]) == (None, 1)
        got = await mesh.operator.GetBackend(pb.GetBackendRequest(name="v1"))
        assert (got.backend.HasField("num_replicas"), got.backend.status.wanted_replicas) == (False, 1)


@pytest.mark.asyncio
async def test_all_mistakes_of_a_file_are_told_at_once_and_nothing_is_applied(tmp_path: Path) -> None:
    file = tmp_path / "mesh.yaml"
    file.write_text(WRONG)
    async with running_controller() as mesh:
        wrong, unknown, missing = await asyncio.gather(
            slotmesh("apply", str(file), "--address", mesh.controller.address),
            slotmesh("apply", "-", "--address", mesh.controller.address, stdin="endpoints: {e: {traffic: {nil: 1}}}"),
            slotmesh("apply", "missing.yaml", "--address", mesh.controller.address, cwd=tmp_path),
        )
        assert (wrong.status, wrong.out) == (2, "")
        heading, *mistakes = wrong.err.splitlines()
        assert "4 errors" in heading
        told = [mistake.strip().partition(":")[0] for mistake in mistakes]
        assert told == [
            "backends.v1.colour",
            "backends.v1.handler",
            "backends.v1.num_replicas",
            "endpoints.digits.traffic",
        ]
        assert (unknown.status, unknown.out) == (1, "")
        assert unknown.err.startswith("INVALID_ARGUMENT/BAD_REQUEST: endpoints.e.traffic.nil: ")
        assert (missing.status, missing.out) == (2, "")
        assert "No such file" in missing.err
        assert not mesh.controller.store.read().backends


@pytest.mark.asyncio
async def test_a_call_prints_its_result_or_its_failure() -> None:
    batches: list[Batch] = []

    def echo(batch: Batch) -> list[bytes]:
        batches.append(batch)
        return batch.payloads

    async with FakeRouter(answer=echo) as router:
        env = {"SLOTMESH_ADDRESS": router.address}
        flags = (
            "--ordering-key=k",
            "--shard-key=user",
            "--affinity-key=a",
            "--timeout=60000ms",
            "--slo=30000ms",
            "--idempotent",
        )
        listed, piped, none = await asyncio.gather(
            slotmesh("call", "digits", "echo", '[1, "ü", 12345678901234567890123]', env=env),
            slotmesh("call", "digits", "echo", "-", stdin='{"a": [1]}\n', env=env),
            slotmesh("call", "digits", "__call__", *flags, env=env),
        )
        assert listed == Said(0, '[1, "ü", 12345678901234567890123]\n', "")
        assert piped == Said(0, '{"a": [1]}\n\n', "")
        assert none == Said(0, "[]\n", "")
        options = next(batch.options for batch in batches if not batch.options.method)
        assert (options.ordering_key, options.shard_key, options.affinity_key) == ("k", "user", "a")
        assert options.idempotent
        # What is left of each.
        assert 0 < options.relative_slo.ToMilliseconds() <= 30_000 < options.timeout.ToMilliseconds() <= 60_000
        assert options.content_type == "application/json"
        plain = next(batch.options for batch in batches if batch.options.method)
        assert {field.name for field, _ in plain.ListFields()} == {"method", "content_type"}

        failure = Failure(reason=Reason.HANDLER_ERROR, message="ValueError: too dark", executed=Executed.YES)
        router.answer = lambda batch: [failure for _ in batch.payloads]
        assert await slotmesh("call", "digits", "echo", env=env) == Said(
            1, "", f"UNKNOWN/{HandlerError.reason}: ValueError: too dark\n"
        )


@pytest.mark.long
@pytest.mark.asyncio
async def test_what_was_typed_wrong_is_told_without_asking_anybody() -> None:
    broken, single, latin, address, method = await asyncio.gather(
        slotmesh("call", "digits", "echo", "[1, 2 3]", "--address", NOBODY),
        slotmesh("call", "digits", "echo", "5", "--address", NOBODY),
        slotmesh("call", "digits", "echo", "[1]", "--timeout", "5", "--address", NOBODY),
        slotmesh("status", "--address", "nowhere"),
        slotmesh("call", "digits"),
    )
    assert {broken.status, single.status, latin.status, address.status, method.status} == {2}
    assert broken.err.splitlines()[1:] == ["  [1, 2 3]", "        ^"]
    assert "try [5]" in single.err
    assert "such as 250ms" in latin.err
    assert "HOST:PORT" in address.err
    assert "METHOD" in method.err


@pytest.mark.asyncio
async def test_a_server_that_is_not_there_or_another_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(MESH)
    async with running_controller() as mesh:
        *gone, wrong_kind = await asyncio.gather(
            slotmesh("status", "--address", NOBODY),
            slotmesh("apply", "mesh.yaml", "--address", NOBODY, cwd=tmp_path),
            slotmesh("health", "--address", NOBODY),
            slotmesh("call", "digits", "echo", env={"SLOTMESH_ADDRESS": NOBODY}),
            slotmesh("call", "digits", "echo", "--address", mesh.controller.address),
        )
    for said in [*gone, wrong_kind]:
        assert (said.status, said.out) == (1, "")
        (line,) = said.err.splitlines()
        assert "--address" in line
    assert all(NOBODY in said.err for said in gone)
    assert f"{mesh.controller.address} is not a router" in wrong_kind.err


@pytest.mark.asyncio
async def test_help_and_version() -> None:
    helped, version = await asyncio.gather(slotmesh("--help"), slotmesh("--version"))
    assert helped.status == 0
    assert all(command in helped.out for command in ("run", "call", "status", "traffic", "apply", "health"))
    assert (version.status, version.out.split()[0]) == (0, "slotmesh")


@pytest.mark.long
@pytest.mark.asyncio
async def test_describe_says_how_many_replicas_should_run_and_why() -> None:
    scaled = MESH.replace("num_replicas: 2", "autoscale: {min: 2, max: 6, target_ongoing: 1.5}")
    async with running_controller(launches=True) as mesh:
        await mesh.apply(scaled)
        await mesh.wait_for_launches(3)
        at = ("--address", mesh.controller.address)
        said = await slotmesh("describe", "v1", *at)
        assert said.status == 0, said
        for words in ("backend v1", "0/2 replicas ready", "autoscale.target_ongoing", "latest look", "latest change"):
            assert words in said.out
        assert "0 → 2" in said.out
        document = json.loads((await slotmesh("describe", "v1", "-o", "json", *at)).out)
        assert document.keys() == json.loads((await slotmesh("describe", "v1", "--json", *at)).out).keys()
        assert (await slotmesh("describe", "v1", "-o", "name", *at)).out == "backend/v1\n"
        assert document["wanted_replicas"] == 2
        assert document["settings"]["autoscale.min"] == "2"
        assert document["latest_change"]["from_replicas"] == 0
        assert document["latest_change"]["to_replicas"] == 2
        assert len(document["replicas"]) == 2
        document = json.loads((await slotmesh("describe", "v2", "--json", *at)).out)
        assert (document["wanted_replicas"], document["latest_decision"]) == (1, None)
        status = json.loads((await slotmesh("status", "--json", *at)).out)
        assert {it["name"]: it["wanted_replicas"] for it in status["backends"]} == {"v1": 2, "v2": 1}
        said = await slotmesh("describe", "none", *at)
        assert (said.status, said.out) == (1, "")
        assert "none" in said.err
