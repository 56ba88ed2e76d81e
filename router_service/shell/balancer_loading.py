"""Loads balancers of users' own at the start, and logs their faults while the router runs.

Purpose: the names that backends may give are those of `--balancers`, and those of installed entry points. What a
configuration names is looked up among them, never imported.
Invariants: one of `--balancers` that cannot be loaded stops the start, with the way out; an entry point that cannot is
left out, with a warning. Faults are logged once per `FAULT_INTERVAL_S` for each backend, balancer and cause, by the
class of what was raised and where: its text may have keys or metadata of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from router_service.core.counters import PickFault
from router_service.core.plugged_balancers import MakePlugIn
from slotmesh.logs import get_logger
from slotmesh.runtime.plug_ins import load_plug_in
from slotmesh.spec.model import BUILT_IN_BALANCERS
from slotmesh.user_code import described, type_name

GROUP: Final = "slotmesh.balancers"
"""Of entry points."""
FAULT_INTERVAL_S: Final = 60.0

_log = get_logger(__name__)


def load_balancers(paths: Iterable[str]) -> Mapping[str, MakePlugIn]:
    """What makes each balancer, by name. Raises CannotStart."""
    makers: dict[str, MakePlugIn] = {}
    for entry in entry_points(group=GROUP):
        try:
            makers[entry.name] = _checked(entry.load())
        except BaseException as error:  # noqa: BLE001 - importing foreign code may raise anything
            _log.warning("an entry point has no balancer and is left out", name=entry.name, reason=described(error))
    for path in paths:
        makers[path] = load_plug_in("--balancers", path, _checked)
    return {name: make for name, make in makers.items() if name not in BUILT_IN_BALANCERS}


def _checked(found: Any) -> MakePlugIn:
    if not callable(found) or (isinstance(found, type) and not callable(getattr(found, "pick", None))):
        raise TypeError("it must be a class with a method pick, or a function that makes such an object")
    make: MakePlugIn = found
    return make


class FaultLog:
    """Logs faults of balancers. Keeps the time of the newest line for each backend, its balancer and cause."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logged: dict[tuple[str, str, PickFault], float] = {}

    def __call__(self, backend: str, balancer: str, cause: PickFault, error: BaseException | None) -> None:
        """See `PlugIns.report`."""
        now = self._now()
        logged_at = self._logged.get((backend, balancer, cause))
        if logged_at is not None and now - logged_at < FAULT_INTERVAL_S:
            return
        self._logged[backend, balancer, cause] = now
        _log.warning(
            "a balancer failed or was late; where it does not pick, least_loaded does",
            backend=backend,
            balancer=balancer,
            cause=cause.value,
            error=_place_of(error) if error is not None else "",
        )


def _place_of(error: BaseException) -> str:
    """The class of an exception, and the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type_name(error)
    return f"{type_name(error)} at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
