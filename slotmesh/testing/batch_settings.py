"""Settings of batch methods are their functions', and so outlive a test that runs handlers in its own process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from slotmesh.handlers.batching import BatchControl
from slotmesh.handlers.decorators import batch_control
from slotmesh.handlers.settings import BatchSettings
from slotmesh.testing.backends import Handler


@contextmanager
def kept(*handlers: Handler) -> Iterator[None]:
    """What handlers set within the block with `set_max_batch_size` and the like is put back after it."""
    before = [(control, control.settings) for handler in handlers for control in _controls(handler)]
    try:
        yield
    finally:
        for control, settings in before:
            _put_back(control, settings)


def _controls(handler: Handler) -> Iterator[BatchControl]:
    functions = [handler]
    if inspect.isclass(handler):
        functions = [value for _, value in inspect.getmembers_static(handler)]
    for function in functions:
        if (control := batch_control(getattr(function, "__func__", function))) is not None:
            yield control


def _put_back(control: BatchControl, settings: BatchSettings) -> None:
    control.set_max_batch_size(settings.max_batch_size)
    control.set_batch_wait_timeout_s(settings.batch_wait_timeout_s)
    control.set_max_concurrent_batches(settings.max_concurrent_batches)
