"""Bad code is applied under load, and taken back: what ran before runs again, also in replicas that start later.

The first of the kinds are part of each run; `SLOTMESH_BAD_CODE=20` tries as many, drawn by chance.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import slotmesh
from slotmesh.cli.controller_view import READY_STATE
from slotmesh.cli.operator import Operator
from slotmesh.cli.waiting import LOOK_S
from slotmesh.v1 import rollout_pb2
from tests.support.mesh import ROOT
from tests.support.shell import Said
from tests.support.shell import slotmesh as command
from tests.support.tiers import long

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

TIMEOUT_S: Final = 90.0
MESH: Final = """
backends:
  b: {handler: "shop.app:Shop", num_replicas: 2, min_ready: 2s, max_error_rate: 0.05}
endpoints:
  e: {traffic: {b: 1}}
"""
APP: Final = """
import itertools, pathlib
from shop import prices

class Shop:
    def __init__(self):
        self.calls = itertools.count(1)
        self.text = (pathlib.Path(__file__).parent / "data.txt").read_text()
        prices.construct()

    async def answer(self):
        return f"{prices.answer(next(self.calls))} {self.text}"
"""
PRICES: Final = """
def construct(): pass
def answer(number): return "good"
"""
IN_MODULE: Final = {
    "import": "raise ImportError('bad')\n" + APP,
    "constructor": APP.replace("prices.construct()", "raise ValueError('bad')"),
    "every call": APP.replace("return f", "raise ValueError('bad')\n        return f"),
    "every fifth call": APP.replace(
        "        return f", "        if next(self.calls) % 5 == 0: raise ValueError('bad')\n        return f"
    ),
}
IN_IMPORTED: Final = {
    "import": "raise ImportError('bad')\n" + PRICES,
    "constructor": PRICES.replace("pass", "raise ValueError('bad')"),
    "every call": PRICES.replace('return "good"', "raise ValueError('bad')"),
    "every fifth call": PRICES.replace('return "good"', 'return "good" if number % 5 else 1 / 0'),
}
KINDS: Final = {
    **{f"{kind} of the module": ("app.py", text) for kind, text in IN_MODULE.items()},
    **{f"{kind} of an imported one": ("prices.py", text) for kind, text in IN_IMPORTED.items()},
    "a changed data file": ("data.txt", None),
}
COUNT: Final = int(os.environ.get("SLOTMESH_BAD_CODE", "0"))
FIRST: Final = ("every fifth call of the module", "import of an imported one", "a changed data file")
DRAWN: Final = [*FIRST] if not COUNT else random.Random(COUNT).choices([*KINDS], k=COUNT)


@dataclass
class Shop:
    """A project, and a mesh that runs it."""

    root: Path
    controller: str
    router: str
    answers: Counter[str] = field(default_factory=Counter[str])

    def write(self, name: str, text: str) -> None:
        (self.root / "shop" / name).write_text(text)

    async def apply(self, *flags: str) -> Said:
        env = {"SLOTMESH_ADDRESS": self.controller}
        return await command("apply", str(self.root / "mesh.yaml"), "--yes", *flags, env=env, timeout=TIMEOUT_S)

    async def kill_replicas(self) -> None:
        """Each of them; returns when others are ready in their place."""
        async with Operator.at(self.controller) as operator:
            before = {it.replica_id: it.pid for it in (await operator.members()).replicas if it.state == READY_STATE}
            for pid in before.values():
                os.kill(pid, signal.SIGKILL)

            async def is_replaced() -> bool:
                ready = (await operator.members()).ready("b")
                return len(ready) == 2 and not ready & before.keys()

            await eventually(is_replaced, "killed replicas are replaced")

    async def require_old(self, text: str) -> None:
        async with slotmesh.connect(self.router) as client:
            endpoint = client.endpoint("e").options(timeout=TIMEOUT_S)
            assert {await endpoint.answer() for _ in range(40)} == {f"good {text}"}


async def eventually(is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    while not await is_so():
        assert loop.time() < deadline, f"not within {TIMEOUT_S} s: {what}"
        await asyncio.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for it in sockets:
            it.bind(("127.0.0.1", 0))
        return [it.getsockname()[1] for it in sockets]


def project(folder: Path) -> Shop:
    """With the code that is good."""
    root, (controller, router) = folder / "project", free_ports(2)
    (root / "shop").mkdir(parents=True)
    (root / "mesh.yaml").write_text(MESH)
    shop = Shop(root, f"127.0.0.1:{controller}", f"127.0.0.1:{router}")
    for name, text in {"app.py": APP, "prices.py": PRICES, "data.txt": "old", "__init__.py": ""}.items():
        shop.write(name, text)
    return shop


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@asynccontextmanager
async def process(*arguments: str, root: Path, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(ROOT)])}
    with log.open("ab") as out:
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, "--metrics-port=-1", cwd=root.parent, stdout=out, stderr=out, env=env
        )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        async with asyncio.timeout(TIMEOUT_S):
            await started.wait()


def controller_flags(root: Path, port: int) -> list[str]:
    flags = ["controller_service", f"--port={port}", f"--state={root.parent / 'state'}", "--if-in-use=refuse"]
    return [*flags, f"--launch-dir={root.parent / 'launched'}", "--replica-output=file"]


@asynccontextmanager
async def called(shop: Shop) -> AsyncIterator[None]:
    """Clients call until the block ends."""
    is_over = False

    async def call_on() -> None:
        async with slotmesh.connect(shop.router) as client:
            endpoint = client.endpoint("e").options(timeout=TIMEOUT_S)
            while not is_over:
                try:
                    shop.answers[await endpoint.answer()] += 1
                except slotmesh.SlotmeshError as error:
                    shop.answers[type(error).__name__] += 1
                await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(call_on())
        try:
            yield
        finally:
            is_over = True


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind", [DRAWN[0], *map(long, DRAWN[1:])], ids=[f"{number}: {kind}" for number, kind in enumerate(DRAWN)]
)
async def test_bad_code_is_taken_back_and_never_runs_again(kind: str, tmp_path: Path) -> None:
    shop = project(tmp_path)
    root, port, log = shop.root, port_of(shop.controller), tmp_path / "log"
    routing = ("router_service", f"--port={port_of(shop.router)}", f"--controller={shop.controller}", "--router-id=r")
    async with process(*routing, root=root, log=log):
        async with process(*controller_flags(root, port), root=root, log=log):
            await eventually(lambda: responds(shop), "the controller leads")
            said = await shop.apply("--wait")
            assert said.status == 0, f"{said.err}\n{log.read_text()}"
            await eventually(lambda: is_rolled_out(shop), "rolled out")
            name, bad = KINDS[kind]
            shop.write(name, "new" if bad is None else bad)
            async with called(shop):
                said = await shop.apply("--wait", "--timeout", "60s")
            if bad is None:
                assert said.status == 0, said.err
                await shop.require_old("new")
                undone = await command("rollback", "--yes", env={"SLOTMESH_ADDRESS": shop.controller})
                assert undone.status == 0, undone.err
            else:
                assert said.status == 3, said.err
                assert "applied, but failed:\n  b: rolled back: " in said.err
            await eventually(lambda: is_rolled_out(shop), "what was before is in force again")
            await shop.require_old("old")
            await shop.kill_replicas()
            await shop.require_old("old")
        # The controller has ended, and its replicas with it. The bad code is still what is in the project.
        async with process(*controller_flags(root, port), root=root, log=log):
            await eventually(lambda: responds(shop), "the controller leads again")
            await shop.require_old("old")
    assert shop.answers["good old"]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_apply_ends_early_where_nothing_is_to_go_back_to_and_waits_for_what_it_changed_only(
    tmp_path: Path,
) -> None:
    shop, log = project(tmp_path), tmp_path / "log"
    routing = ("router_service", f"--port={port_of(shop.router)}", f"--controller={shop.controller}", "--router-id=r")
    flags = controller_flags(shop.root, port_of(shop.controller))
    async with process(*routing, root=shop.root, log=log), process(*flags, root=shop.root, log=log):
        await eventually(lambda: responds(shop), "the controller leads")
        shop.write("app.py", IN_MODULE["constructor"])
        said = await shop.apply("--wait", "--timeout", "10m")
        assert said.status == 3, said.err
        assert "applied, but failed:\n  b: fails, and there is nothing to go back to: " in said.err
        # The command looks more than once before it is ready.
        slow = APP.replace("prices.construct()", f"__import__('time').sleep({2 * LOOK_S})")
        shop.write("other.py", slow)
        other = {"backends": {"c": {"handler": "shop.other:Shop"}}, "endpoints": {"f": {"traffic": {"c": 1}}}}
        (shop.root / "mesh.yaml").write_text(json.dumps(other))
        said = await shop.apply("--wait", "--timeout", "60s")
        assert said.status == 0, said.err
        async with Operator.at(shop.controller) as operator:
            assert not (await operator.members()).ready("b"), "it still fails"


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_edited_code_beside_a_state_is_constructed_once_for_each_replica(tmp_path: Path) -> None:
    shop, log, constructed = project(tmp_path), tmp_path / "log", tmp_path / "constructed"
    shop.write("prices.py", PRICES.replace("pass", f"open({str(constructed)!r}, 'a').write('good\\n')"))
    flags = [*controller_flags(shop.root, port_of(shop.controller)), f"--spec={shop.root / 'mesh.yaml'}"]
    for answer in ("good", "edited"):
        shop.write("prices.py", (shop.root / "shop" / "prices.py").read_text().replace("good", answer))
        constructed.write_text("")
        async with process(*flags, root=shop.root, log=log):
            await eventually(lambda: is_ready(shop), "both replicas are ready")
            async with Operator.at(shop.controller) as operator:
                assert len((await operator.members()).replicas) == 2, "none was started with the code of before"
        assert constructed.read_text().split() == [answer] * 2


async def is_ready(shop: Shop) -> bool:
    if not await responds(shop):
        return False
    async with Operator.at(shop.controller) as operator:
        return len((await operator.members()).ready("b")) == 2


async def responds(shop: Shop) -> bool:
    try:
        async with Operator.at(shop.controller) as operator:
            await operator.members()
    except Exception:  # noqa: BLE001 - it is not there yet
        return False
    return True


async def is_rolled_out(shop: Shop) -> bool:
    async with Operator.at(shop.controller) as operator:
        return all(
            it.phase == rollout_pb2.ROLLOUT_PHASE_COMPLETE and not it.outdated
            for it in (await operator.snapshot()).rollouts
        )
