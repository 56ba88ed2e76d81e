"""Reads a mesh's state from etcd as a whole, or begins one there: what exports and imports do, without a controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

from controller_service.core.desired.state import Desired
from controller_service.store.etcd.client import EtcdClient, EtcdFailed
from controller_service.store.etcd.etcd_state import EtcdState
from controller_service.store.etcd.layout import Layout
from controller_service.store.etcd.outcomes import read_snapshot
from controller_service.store.forms import BadDocument
from controller_service.store.protocol import StateRefused
from controller_service.store.rows import DamagedRows
from slotmesh.config.etcd import EtcdAccess, EtcdPlace
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff, WarningBackoff

START_S: Final = 10.0
"""How long a start, an export and an import wait for etcd."""
SILENT_S: Final = 0.5
"""After this time the log reports that they wait, with the reason."""

ResultT = TypeVar("ResultT")
_log = get_logger(__name__)


async def read_state(place: EtcdPlace, access: EtcdAccess) -> tuple[str, Desired]:
    """Generation and state, which a controller may have in use meanwhile. Raises StateRefused."""
    async with _connected(place, access) as client:
        with refusals(place):
            found = await patient(place, lambda: read_snapshot(client, Layout(place.prefix)))
        if found.stored is None:
            raise StateRefused(f"{place}: there is no state; name the one that the controller has with --state")
        return found.stored.head.generation, found.state


async def create_state(place: EtcdPlace, access: EtcdAccess, generation: str, desired: Desired) -> None:
    """A new state, which no controller has. Raises StateRefused, also if there is one."""
    async with _connected(place, access) as client:
        state = await patient(place, lambda: EtcdState.hold(client, place))
        try:
            with refusals(place):
                await state.create(generation, desired)
        except EtcdFailed as failed:
            raise StateRefused(f"{place}: {failed}") from failed
        finally:
            await state.release()


@asynccontextmanager
async def _connected(place: EtcdPlace, access: EtcdAccess) -> AsyncGenerator[EtcdClient, None]:
    client = EtcdClient(place.members, access)
    try:
        yield client
    finally:
        await client.close()


async def patient(place: EtcdPlace, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Tries it while etcd does not answer, for `START_S`. Raises StateRefused."""
    began = asyncio.get_running_loop().time()
    backoff, warnings = Backoff(initial_s=0.05, max_s=0.5), WarningBackoff()
    while True:
        try:
            return await attempt()
        except EtcdFailed as failed:
            waited_s = asyncio.get_running_loop().time() - began
            if failed.is_refused or waited_s >= START_S:
                raise StateRefused(f"{place}: {failed}") from failed
            if waited_s >= SILENT_S and warnings.take(waited_s) is not None:
                _log.warning("etcd is waited for", place=str(place), at_most_s=START_S, reason=str(failed))
        await asyncio.sleep(backoff.next_delay_s())


@contextmanager
def refusals(place: EtcdPlace) -> Iterator[None]:
    """Raises StateRefused for a state that this version cannot read."""
    try:
        yield
    except BadDocument as error:
        raise StateRefused(f"{place}: {error}. Nothing was changed. Use the slotmesh that wrote it") from error
    except DamagedRows as error:
        raise StateRefused(f"{place}: the state is damaged ({error}). Nothing was changed") from error
