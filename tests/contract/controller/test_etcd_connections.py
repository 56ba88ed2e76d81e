"""A connection to etcd that is given up while requests on it are under way."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from controller_service.store.etcd.client import EtcdClient, EtcdFailed
from controller_service.store.etcd.operations import Get, Put
from slotmesh.config.etcd import PLAIN_ACCESS
from tests.support.etcd import etcd_cluster, needs_etcd
from tests.support.wait import within

pytestmark = [needs_etcd, pytest.mark.asyncio]


async def test_a_request_on_a_connection_that_is_given_up_fails_and_is_not_cancelled(tmp_path: Path) -> None:
    async with etcd_cluster(tmp_path) as cluster:
        client = EtcdClient(cluster.place().members, PLAIN_ACCESS)
        await client.txn([], [Get(b"x")])
        cluster.members[0].signal(signal.SIGSTOP)
        requests = [asyncio.create_task(client.txn([], [Get(b"x")])) for _ in range(3)]
        for _ in range(2):
            await asyncio.sleep(0)
        client._leave(0)
        for each in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(each, EtcdFailed)
        cluster.members[0].signal(signal.SIGCONT)
        await client.close()


async def test_a_watch_on_a_connection_that_is_given_up_fails_and_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller_service.store.etcd.client._CLOSING_S", 0.1)
    async with etcd_cluster(tmp_path) as cluster:
        client = EtcdClient(cluster.place().members, PLAIN_ACCESS)
        begun = asyncio.Event()
        await client.txn([], [Put(b"x", b"")])

        async def watch() -> None:
            async for _ in client.watch(b"x", 0):
                begun.set()

        watching = asyncio.create_task(watch())
        await within(begun.wait(), "the first response")
        client._leave(0)
        with pytest.raises(EtcdFailed, match="was closed"):
            await within(watching, "its failure")
        await client.close()
