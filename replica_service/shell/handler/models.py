"""The models of a constructed handler: what its `@multiplexed` methods have loaded.

Purpose: reports the loaded models to routers and to the controller, and unloads all models at the end.
Invariant: a model that a call still uses at the end, because its thread cannot be stopped, is not unloaded.
Owner: the replica, on the service's loop; pools report changes in any thread.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import chain
from typing import Any, Final

from replica_service.convert.reports import loaded_models_to_wire
from replica_service.shell.handler.handler_loop import HandlerLoop
from slotmesh.handlers.model_pools import ModelCounts
from slotmesh.handlers.multiplexed import multiplexed_of
from slotmesh.handlers.reporting import HandlerState
from slotmesh.logs import get_logger
from slotmesh.v1 import mesh_pb2

UNLOAD_S: Final = 10.0
"""How long models have to unload at the end of the replica, together."""
_log = get_logger(__name__)


class HandlerModels:
    """The pools of one handler."""

    def __init__(self, handler: Any, state: HandlerState) -> None:
        """`state` is where the loaded models are reported.

        Raises:
            TypeError: a multiplexed method cannot be used.
        """
        self._pools = [each.pool(handler) for each in multiplexed_of(type(handler))]
        self._state = state
        self._reporting = threading.Lock()
        """A list that was made earlier is not reported later."""
        for pool in self._pools:
            pool.on_change = self._changed
        if self._pools:
            state.max_models = sum(each.max_models for each in multiplexed_of(type(handler)))
            self._changed()

    @property
    def counts(self) -> list[ModelCounts]:
        """Those of each pool."""
        return [pool.counts for pool in self._pools]

    @property
    def loaded(self) -> int:
        """The number of loaded models."""
        return sum(len(pool.loaded) for pool in self._pools)

    @property
    def is_multiplexed(self) -> bool:
        """Whether the handler has such methods."""
        return bool(self._pools)

    def to_wire(self) -> mesh_pb2.LoadedModels:
        """What the controller shows of them."""
        return loaded_models_to_wire(self._state.models, self._state.max_models)

    async def close(self, loop: HandlerLoop) -> None:
        """Unloads all models. To be called when no call runs any more, before the handler's loop ends."""
        try:
            async with asyncio.timeout(UNLOAD_S):
                for pool in self._pools:
                    await loop.run(pool.close)
        except TimeoutError:
            _log.error("models were not unloaded in time", timeout_s=UNLOAD_S)

    def _changed(self) -> None:
        with self._reporting:
            loads = sum(each.loads for each in self.counts)
            self._state.load_s = sum(each.load_s for each in self.counts) / max(1, loads)
            self._state.loaded(dict.fromkeys(chain.from_iterable(pool.loaded for pool in self._pools)))
