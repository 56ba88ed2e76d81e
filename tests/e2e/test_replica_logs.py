"""What launched replicas write, as operators read it: with `slotmesh logs`, and in `slotmesh status` of crash loops."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import slotmesh as sdk
from tests.support.lone_controller import lone_controller
from tests.support.shell import slotmesh
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

SPEC = """
backends:
  Talker: {handler: "tests.e2e.handlers:Talker", num_replicas: 2, graceful_timeout: 2s}
endpoints:
  Talker: {traffic: {Talker: 1.0}}
"""
CRASHING = """
backends:
  Crasher: {handler: "tests.e2e.handlers:Crasher"}
"""


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_what_a_handler_prints_is_read_from_anywhere_and_outlives_the_controller(tmp_path: Path) -> None:
    async with lone_controller(tmp_path, SPEC) as lone, sdk.connect(lone.router_address) as client:
        env = {"SLOTMESH_ADDRESS": lone.address}
        both = sorted(await lone.ready(2))
        said = [f"word {number}" for number in range(40)]
        await asyncio.gather(*[client.endpoint("Talker").say(text) for text in said])
        # What both have printed, in the order of each.
        printed: list[str] = []

        async def is_there(*flags: str) -> bool:
            out = (await slotmesh("logs", "-n", "0", "Talker", *flags, env=env)).out
            printed[:] = [line for line in out.splitlines() if " | word " in line]
            return sorted(line.rpartition(" | ")[2] for line in printed) == sorted(said)

        async with asyncio.timeout(20):
            while not await is_there():
                pass
        assert {line.partition(" | ")[0] for line in printed} <= set(both)
        first = printed[0].partition(" | ")[0]  # quick calls may all have gone to one of them
        one = await slotmesh("logs", "-n", "0", first, env=env)
        assert [line for line in one.out.splitlines() if line.startswith("word ")] == [
            line.rpartition(" | ")[2] for line in printed if line.startswith(first)
        ]
        assert (await slotmesh("logs", "-n", "1", first, env=env)).out == one.out.splitlines()[-1] + "\n"
        assert "word 7\n" in lone.log_text(), "the controller's stderr has it, too"

        unknown = await slotmesh("logs", "Nobody", env=env)
        assert (unknown.status, unknown.out) == (1, "")
        there_is = ", ".join(["Talker", *both])
        assert f"no output is known of a replica 'Nobody'; there is that of {there_is}\n" in unknown.err
        assert "'talker'; did you mean Talker?\n" in (await slotmesh("logs", "talker", env=env)).err

        await lone.kill()
        await lone.start()
        assert sorted(await lone.ready(2)) == both
        async with asyncio.timeout(20):
            while not await is_there():
                pass

        # Who follows a replica reads until it ends.
        following = asyncio.ensure_future(slotmesh("logs", "-f", "-n", "0", first, env=env))
        (tmp_path / "none.yaml").write_text(SPEC.replace("num_replicas: 2", "num_replicas: 0"), "utf-8")
        await slotmesh("apply", str(tmp_path / "none.yaml"), env=env)
        async with asyncio.timeout(30):
            followed = await following
        assert followed.status == 0
        assert followed.out.startswith(one.out)
        assert "stop requested" in followed.out


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_crash_loop_is_seen_with_its_last_words(tmp_path: Path) -> None:
    async with lone_controller(tmp_path, CRASHING) as lone:
        env = {"SLOTMESH_ADDRESS": lone.address}
        await wait_until(lambda: "backend_crash_looping" in lone.log_text(), timeout=60.0, what="the warning")

        async def shown() -> str:
            return (await slotmesh("status", env=env)).out

        async with asyncio.timeout(40):
            while "Crasher is crash looping" not in (text := await shown()):
                pass
        assert "exited with status 7" in text
        assert "  there is no model here\n" in text
        assert "All that it wrote: slotmesh logs Crasher" in text
        replicas = json.loads((await slotmesh("status", "--json", env=env)).out)["replicas"]
        worst = max(replicas, key=lambda each: each["restart_count"])
        assert worst["restart_count"] >= 3
        assert "there is no model here" in worst["last_output"]
        assert "there is no model here" in (await slotmesh("logs", "Crasher", env=env)).out
