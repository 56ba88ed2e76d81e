"""`slotmesh run --proto` with real processes: a user's own proto and handler, and clients that know the proto only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import yaml

from tests.support.controllers import eventually
from tests.support.mesh import started_mesh
from tests.support.shell import program, slotmesh
from tests.support.wait import wait_until

PROTO = """
syntax = "proto3";
package shop.v1;
import "shop/money.proto";
service Orders {
  rpc Place(Order) returns (Receipt);
  rpc PlaceAll(stream Order) returns (Receipt);
  rpc Watch(Order) returns (stream Receipt);
  rpc Haggle(stream Order) returns (stream Receipt);
}
message Order { string item = 1; Money price = 2; }
message Receipt { string text = 1; }
"""
MONEY = """
syntax = "proto3";
package shop.v1;
message Money { int64 cents = 1; }
"""
APP = """
from shop.orders_pb2 import Receipt
from shop.orders_pb2_grpc import OrdersServicer

class Shop(OrdersServicer):
    async def Place(self, request, context):
        tenant = dict(context.invocation_metadata()).get("tenant", "nobody")
        return Receipt(text=f"{request.item} for {request.price.cents}, {tenant}")

    async def Count(self, request, context):
        return Receipt(text=f"{len(request.item)} letters")

    async def PlaceAll(self, requests, context):
        return Receipt(text=", ".join([request.item async for request in requests]))

    async def Watch(self, request, context):
        yield Receipt(text=request.item)
        await context.abort("NOT_FOUND", "sold out")

    async def Haggle(self, requests, context):
        async for request in requests:
            yield Receipt(text=f"{request.price.cents // 2}")
"""
MORE = PROTO.replace("rpc Place(Order)", "rpc Count(Order) returns (Receipt);\n  rpc Place(Order)")
"""With an rpc more."""
DIRECTION = "/shop.v1.Orders/"


@pytest_asyncio.fixture
async def folder(tmp_path: Path) -> Path:
    """What a user has: protos, the generated modules, a handler."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "orders.proto").write_text(PROTO)
    (tmp_path / "shop" / "money.proto").write_text(MONEY)
    (tmp_path / "app.py").write_text(APP)
    await generate(tmp_path)
    return tmp_path


async def generate(folder: Path) -> None:
    """As `protoc` does, beside the protos."""
    protos = ["shop/orders.proto", "shop/money.proto"]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--grpc_python_out=.", *protos]
    said = await program(*command, cwd=folder)
    assert said.status == 0, said.err


def order(item: str, cents: int) -> bytes:
    """An Order, as its bytes are."""
    assert cents < 128
    return b"\x0a" + bytes([len(item)]) + item.encode() + b"\x12\x02\x08" + bytes([cents])


def text(receipt: bytes) -> str:
    return receipt[2:].decode()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_client_of_the_proto_calls_a_mesh_that_one_command_started(folder: Path) -> None:
    flags = ("--proto", "shop/orders.proto")
    env = {"SLOTMESH_CALL_METADATA": "tenant"}
    async with started_mesh("app:Shop", cwd=folder, flags=flags, env=env) as mesh:
        opened: Any = grpc.aio.insecure_channel(mesh.router_address)
        async with opened as channel:
            said = (("tenant", "ada"), ("secret", "no"))
            placed = await channel.unary_unary(f"{DIRECTION}Place")(order("tea", 7), metadata=said)
            assert text(placed) == "tea for 7, ada"
            both = iter([order("tea", 7), order("pot", 8)])
            assert text(await channel.stream_unary(f"{DIRECTION}PlaceAll")(both)) == "tea, pot"
            haggling = channel.stream_stream(f"{DIRECTION}Haggle")(iter([order("tea", 9)]))
            assert [text(each) async for each in haggling] == ["4"]
            watch = channel.unary_stream(f"{DIRECTION}Watch")(order("tea", 7))
            assert text(await watch.read()) == "tea"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.read()
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "sold out")

            at = ("--address", mesh.controller_address)
            described = await slotmesh("describe", "endpoint/Shop", "--json", *at)
            assert json.loads(described.out)["grpc_services"] == ["shop.v1.Orders"]
            shown = await slotmesh("get", "endpoint/Shop", "-o", "table", *at)
            assert "[shop.v1.Orders]" in shown.out
            got = await slotmesh("get", *at)
            document = yaml.safe_load(got.out)
            (folder / "got.yaml").write_text(got.out)
            again = await slotmesh("apply", "got.yaml", "--no-wait", *at, cwd=folder)
            assert again.status == 0, again.err
            assert "grpc_services" not in again.err

            del document["endpoints"]["Shop"]["grpc_services"]
            (folder / "without.yaml").write_text(yaml.safe_dump(document))
            taken = await slotmesh("apply", "without.yaml", "--no-wait", *at, cwd=folder)
            assert taken.status == 0, taken.err
            assert "grpc_services" in taken.err

            codes: list[str] = []

            async def ask() -> None:
                try:
                    await channel.unary_unary(f"{DIRECTION}Place")(order("tea", 7))
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code().name)

            for _ in range(200):
                await ask()
                if codes:
                    break
            assert codes == ["UNIMPLEMENTED"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.asyncio
async def test_with_reload_a_proto_that_changes_is_served_as_it_is_now(folder: Path) -> None:
    proto = folder / "shop" / "orders.proto"
    async with started_mesh("app:Shop", cwd=folder, flags=("--proto", "shop/orders.proto", "--reload")) as mesh:
        before = await mesh.replica_pids()
        async with grpc.aio.insecure_channel(mesh.router_address) as channel:
            count: Any = channel.unary_unary(f"{DIRECTION}Count")

            async def counted() -> str:
                try:
                    return text(await count(order("teapot", 7), timeout=20))
                except grpc.aio.AioRpcError as error:
                    return error.code().name

            assert await counted() == "UNIMPLEMENTED"
            rewrite(proto, MORE.replace("returns (Receipt);", "returns Receipt;", 1))
            what = "not reloaded, what runs goes on: shop/orders.proto: protoc:"
            await wait_until(lambda: what in mesh.log_text(), timeout=60, what="the refusal of the reload")
            assert (await mesh.replica_pids()).keys() == before.keys()
            rewrite(proto, MORE)
            await generate(folder)

            async def is_counted() -> bool:
                return await counted() == "6 letters"

            await eventually(is_counted, what="the new rpc is answered", timeout=60)

            async def is_replaced() -> bool:
                return not before.keys() & (await mesh.replica_pids()).keys()

            await eventually(is_replaced, what="the earlier replicas have ended", timeout=60)


def rewrite(path: Path, said: str) -> None:
    """As an editor saves: the file is the old or the new one, with another time."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(said)
    new.replace(path)


@pytest.mark.asyncio
async def test_a_proto_that_cannot_be_used_is_wrong_usage(folder: Path) -> None:
    for wrong, told in (("absent.proto", "no such file"), ("app.py", "FileDescriptorSet")):
        said = await slotmesh("run", "app:Shop", "--proto", wrong, cwd=folder)
        assert said.status == 2
        assert told in said.err.replace("\n", " ")
