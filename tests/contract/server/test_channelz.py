"""channelz of every server of the mesh, where a setting asks for it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc

from controller_service.config import ControllerSettings
from replica_service.config import ReplicaSettings
from router_service.config import RouterSettings
from slotmesh.runtime.channels import open_channel
from slotmesh.server.server import GrpcServer
from tests.contract.server.served_router import Setting, StatusCode, call, serving


def stub(channel: grpc.aio.Channel) -> Any:
    return channelz_pb2_grpc.ChannelzStub(channel)


async def newest_server(channel: grpc.aio.Channel) -> Any:
    """What channelz says of the newest server of the process."""
    told = await stub(channel).GetServers(channelz_pb2.GetServersRequest(), timeout=10)
    return max(told.server, key=lambda each: each.ref.server_id)


@pytest.mark.asyncio
async def test_it_is_not_there_unless_asked_for(setting: Setting) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub(setting[2]).GetServers(channelz_pb2.GetServersRequest(), timeout=10)
    assert caught.value.code() is StatusCode.UNIMPLEMENTED
    for settings in (ControllerSettings, RouterSettings, ReplicaSettings):
        assert settings.model_fields["channelz"].default is False


@pytest.mark.asyncio
async def test_it_counts_the_rpcs_of_a_server_and_names_its_peers() -> None:
    async with serving(channelz=True) as (_, _, channel):
        before = (await newest_server(channel)).data.calls_succeeded
        for _ in range(3):
            await call(channel)
        own = await newest_server(channel)
        assert own.data.calls_succeeded >= before + 3
        which = {"server_id": own.ref.server_id}
        one = await stub(channel).GetServer(channelz_pb2.GetServerRequest(**which), timeout=10)
        assert one.server.ref == own.ref
        sockets = await stub(channel).GetServerSockets(channelz_pb2.GetServerSocketsRequest(**which), timeout=10)
        (socket,) = sockets.socket_ref
        told = await stub(channel).GetSocket(channelz_pb2.GetSocketRequest(socket_id=socket.socket_id), timeout=10)
        assert told.socket.data.streams_started > 3


@pytest.mark.asyncio
async def test_channels_of_a_newer_core_than_the_protos_are_told_of() -> None:
    async with serving(channelz=True) as (server, _, channel):
        await call(channel)
        told = await stub(channel).GetTopChannels(channelz_pb2.GetTopChannelsRequest(), timeout=10)
        (own,) = (each for each in told.channel if server.address in each.data.target)
        which = channelz_pb2.GetChannelRequest(channel_id=own.ref.channel_id)
        one = (await stub(channel).GetChannel(which, timeout=10)).channel
        assert one.ref == own.ref
        below = channelz_pb2.GetSubchannelRequest(subchannel_id=one.subchannel_ref[0].subchannel_id)
        assert (await stub(channel).GetSubchannel(below, timeout=10)).subchannel.socket_ref


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [-1, 0, 2**62])
@pytest.mark.parametrize("method", ["GetServer", "GetServerSockets", "GetChannel", "GetSubchannel", "GetSocket"])
async def test_what_is_not_there_is_not_found(method: str, number: int) -> None:
    request = getattr(channelz_pb2, f"{method}Request")()
    field = next(each.name for each in request.DESCRIPTOR.fields if each.name.endswith("_id"))
    setattr(request, field, number)
    server = GrpcServer("bare", channelz=True)
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(stub(channel), method)(request, timeout=10)
    finally:
        await server.stop()
    assert caught.value.code() is StatusCode.NOT_FOUND
    assert f"{field}={number}" in str(caught.value.details())
