"""The client's side of the in-memory gRPC: stands in for what grpc.aio has in Cython (`AioChannel`).

Purpose: all of grpc.aio that is written in Python runs as it is, on top of this: multicallables, calls, their errors.
Invariants: as grpc.aio's own; `tests/unit/simulation/mesh/test_rpc.py` runs the same expectations over both.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from simulation.mesh.client_rpc import SimCall
from simulation.mesh.cython import cygrpc
from simulation.mesh.loop import NodeLoop
from simulation.mesh.network import Network, SimulatedConnection

_STATE: Final = cygrpc.ConnectivityState
_CODE: Final = cygrpc.StatusCode
_BACKOFF_S: Final = (0.1, 1.0)


class SimChannel:
    """Stands in for `cygrpc.AioChannel`."""

    def __init__(self, network: Network, target: bytes, loop: NodeLoop) -> None:
        self.loop = loop
        self.network = network
        self._target = target.decode()
        self._state: int = _STATE.idle
        self._connection: SimulatedConnection | None = None
        self._calls: dict[SimCall, None] = {}
        self._waiting: list[SimCall] = []
        """Calls that wait for a connection."""
        self._watchers: list[tuple[int, asyncio.Future[bool]]] = []
        self._backoff_s = _BACKOFF_S[0]
        self._is_connecting = False
        self._is_closing = False
        self._name = f"channel {loop.name} {self._target} {network.timeline.steps}"
        self._chance: Random | None = None
        self._why = ""

    # -- as cygrpc has it ------------------------------------------------------------------------------------------

    def target(self) -> bytes:
        return self._target.encode()

    def check_connectivity_state(self, try_to_connect: bool) -> int:
        if self._state == _STATE.shutdown:
            return self._state
        if try_to_connect and self._state == _STATE.idle:
            self.loop.call_soon(self._connect)
        return self._state

    async def watch_connectivity_state(self, last: int, deadline: float | None) -> bool:
        del deadline  # nobody gives one
        if self._state == _STATE.shutdown:
            raise cygrpc.UsageError("Channel is closed.")
        if self._state != last:
            await asyncio.sleep(0)
            return True
        changed: asyncio.Future[bool] = self.loop.create_future()
        self._watchers.append((last, changed))
        return await changed

    def closing(self) -> None:
        self._is_closing = True

    def close(self) -> None:
        if self._state == _STATE.shutdown:
            return
        self._is_closing = True
        for call in [*self._waiting, *self._calls]:
            call.fail(_CODE.cancelled, "Channel closed!")
        self._waiting.clear()
        connection, self._connection = self._connection, None
        self._set(_STATE.shutdown)
        if connection is not None:
            connection.close(connection.near, "Socket closed")

    def closed(self) -> bool:
        return self._is_closing

    def get_registered_call_handle(self, _method: bytes) -> int:
        return 0

    def call(
        self, method: bytes, deadline: float | None, _credentials: object, wait_for_ready: bool | None, _handle: int = 0
    ) -> SimCall:
        if self._is_closing:
            raise cygrpc.UsageError("Channel is closed.")
        return SimCall(self, method.decode(), deadline, bool(wait_for_ready))

    # -- connecting ------------------------------------------------------------------------------------------------

    def begin(self, call: SimCall) -> None:
        """Puts a call on the connection, as soon as there is one."""
        if self._state == _STATE.ready and self._connection is not None:
            self._calls[call] = None
            call.started(self._connection)
        elif self._state == _STATE.transient_failure and not call.wait_for_ready:
            self.loop.call_soon(call.fail, _CODE.unavailable, f"failed to connect to all addresses; {self._why}")
        elif self._state == _STATE.shutdown:
            self.loop.call_soon(call.fail, _CODE.cancelled, "Channel closed!")
        else:
            self._waiting.append(call)
            self._connect()

    def forget(self, call: SimCall) -> None:
        self._calls.pop(call, None)
        if call in self._waiting:
            self._waiting.remove(call)

    def _connect(self) -> None:
        if self._is_connecting or self._state not in {_STATE.idle, _STATE.transient_failure}:
            return
        self._is_connecting = True
        if self._state == _STATE.idle:
            self._set(_STATE.connecting)
        self.network.connect(self.loop, self._target, self._connected)

    def _connected(self, connection: SimulatedConnection | None, why: str) -> None:
        self._is_connecting = False
        if self._state == _STATE.shutdown:
            if connection is not None:
                connection.close(connection.near, "Socket closed")
            return
        if connection is None:
            self._why = why
            if self._chance is None:
                self._chance = self.network.timeline.chance(self._name)
            pause_s = self._backoff_s * self._chance.uniform(0.8, 1.2)
            self._backoff_s = min(self._backoff_s * 1.6, _BACKOFF_S[1])
            self._set(_STATE.transient_failure)
            hopeless = [call for call in self._waiting if not call.wait_for_ready]
            self._waiting = [call for call in self._waiting if call.wait_for_ready]
            for call in hopeless:
                call.fail(_CODE.unavailable, f"failed to connect to all addresses; {why}")
            self.loop.call_later(pause_s, self._connect)
            return
        self._backoff_s = _BACKOFF_S[0]
        self._connection = connection
        connection.near.on_end = self._lost
        connection.goes_away = self.goes_away
        self._set(_STATE.ready)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._calls[call] = None
            call.started(connection)

    def goes_away(self, connection: SimulatedConnection) -> None:
        """The server takes no new rpcs on this connection; those under way go on."""
        if self._connection is connection:
            self._connection = None
            self._set(_STATE.idle)

    def _lost(self, why: str) -> None:
        if self._connection is not None and not self._connection.near.is_open:
            self._connection = None
            if self._state == _STATE.ready:
                self._set(_STATE.idle)
        for call in list(self._calls):
            if not call.is_connected:
                call.fail(_CODE.unavailable, why)

    def _set(self, state: int) -> None:
        if state == self._state:
            return
        self._state = state
        watchers, self._watchers = self._watchers, []
        for last, changed in watchers:
            if not changed.done():
                if state != last:
                    changed.set_result(True)
                else:
                    self._watchers.append((last, changed))
