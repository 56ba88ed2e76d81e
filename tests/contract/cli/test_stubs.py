"""`slotmesh stubs` writes the interface of a running handler, which makes calls of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import slotmesh.testing
from tests.arch.sources import ROOT
from tests.support.shell import slotmesh as command
from tests.typed.cart_handler import Carts

pytestmark = pytest.mark.asyncio


def imported(source: str, folder: Path) -> ModuleType:
    file = folder / "written_carts.py"
    file.write_text(source, "utf-8")
    spec = importlib.util.spec_from_file_location("written_carts", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["written_carts"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_interface_of_a_running_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "written_carts", raising=False)
    async with slotmesh.testing.mesh({"carts": Carts}) as mesh:
        written = await command("stubs", "carts", "--address", mesh.router_addresses[0])
        assert (written.status, written.err) == (0, "")
        sample = ROOT / "tests" / "typed" / "carts.py"
        assert written.out == sample.read_text("utf-8"), f"write it to {sample}"
        module = imported(written.out, tmp_path)
        carts = mesh.endpoint("carts", module.Carts)
        assert await carts.buy("tea") == module.Receipt(item="tea", total=1.5)
        assert [each async for each in carts.changes.stream("mine")] == [module.Receipt(item="mine", total=0.0)]
        assert await carts.options_("tea", color="green") == "green"
        assert await carts("mine") is True
        unknown = await command("stubs", "cart", "--address", mesh.router_addresses[0])
        assert (unknown.status, unknown.out) == (1, "")
        assert "there is no endpoint cart" in unknown.err
        called = await command("call", "cart", "buy", '["tea"]', "--address", mesh.router_addresses[0])
        assert called.err.splitlines()[-1].endswith("no endpoint is named 'cart'; there is: carts; did you mean carts?")
        far = await command("call", "x", "buy", '["tea"]', "--address", mesh.router_addresses[0])
        assert (far.status, "did you mean" in far.err) == (1, False)
