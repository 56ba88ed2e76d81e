"""The life of a controller's process: it stands by while another one leads, leads, and ends.

Invariants: it leads once at most: after that its process ends, and its supervisor starts it again, to stand by; while
it stands by it answers at its address, with the leader; replicas that it has launched outlive it if another one takes
over.
Owner: `__main__`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controller_service.app import (
    SERVICERS,
    MakeLauncher,
    candidacy_of,
    lead,
    observe,
    taken_up,
)
from controller_service.config import ControllerSettings
from controller_service.controller_server import Front
from controller_service.core.desired.planning import ChangeTerms
from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.event_log import EventKind
from controller_service.shell.changes.configurator import Configurator
from controller_service.shell.launchers.device_pools import device_rules, pools_of
from controller_service.shell.launchers.launched_processes import LaunchDirectory, default_directory
from controller_service.shell.launchers.process import ProcessLauncher, replica_command
from controller_service.shell.launchers.protocol import Launcher, OnExit, mint_replica_id
from controller_service.shell.loops.autoscaler import load_policies
from controller_service.shell.metrics import observe_leadership
from controller_service.shell.replica_logs import LogBook
from controller_service.store.protocol import Candidacy, Store
from slotmesh.config import SettingsError
from slotmesh.errors import SlotmeshError
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.parent import ParentPipe, announce, watch_parent
from slotmesh.runtime.process_identity import own_process
from slotmesh.runtime.signals import stop_signals
from slotmesh.security.identity import Role
from slotmesh.security.tokens import Tokens
from slotmesh.server.rpc_gate import observe_edge
from slotmesh.spec.devices import read_pairs
from slotmesh.spec.model import InvalidSpec
from slotmesh.telemetry.security_metrics import observe_tokens
from slotmesh.telemetry.setup import MetricsServer, metrics_target, setup_metrics
from slotmesh.units import parse_names

if TYPE_CHECKING:
    # Most of a second at its first import, for those who have certificates.
    from slotmesh.security.tls import TlsSource

LEADS_NO_MORE: Final = 1
"""Exit status: another controller leads, or may."""
PREDECESSOR_S: Final = 10.0
"""How long a controller that has lost the lead may take to let go of the replicas that it has launched."""

_log = get_logger(__name__)


async def serve(settings: ControllerSettings) -> int:
    """Runs a controller until it is asked to stop, or another one leads in its place. Returns the exit status."""
    with stop_signals(ignore_interrupt=settings.parent_fd is not None) as stop:
        if settings.parent_fd is not None:
            watch_parent(settings.parent_fd, stop.set)
        tls, tokens = settings.tls_source(Role.CONTROLLER), settings.token_verifier()
        metrics = setup_metrics(
            "slotmesh-controller",
            settings.metrics_host,
            settings.metrics_port,
            otlp=metrics_target(settings),
            tls=tls,
            tokens=tokens,
        )
        if settings.autoscale_policies:
            metrics.prepare()
        if tokens is not None:
            observe_tokens(metrics.meter, tokens)
        try:
            return await ControllerLife(settings, metrics, stop, tls, tokens).run()
        finally:
            await metrics.aclose()


class ControllerLife:
    """From the start of a controller to its end."""

    def __init__(
        self,
        settings: ControllerSettings,
        metrics: MetricsServer,
        stop: asyncio.Event,
        tls: TlsSource | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._stop = stop
        self.front = Front(settings, *SERVICERS, tls=tls, tokens=tokens)
        self._announce_address: Callable[[], None] = self._announce
        front = self.front
        metrics.look_at(
            lambda: front.server.serving and not front.store_problem,
            front.why_not_serving,
            lambda: front.leader is not None and front.is_started,
        )
        front.info.exports = (metrics.exports,)
        metrics.observe_rpcs(self.front.server.rpc_times)
        observe_edge(metrics.meter, self.front.server.edge)
        observe_leadership(metrics.meter, lambda: self.front.leadership)

    async def run(self) -> int:
        """Returns the exit status. Raises CannotStart, SettingsError."""
        try:
            return await self._run()
        finally:
            await self.front.server.stop()

    async def _run(self) -> int:
        clock, front = MonotonicClock(), self.front
        candidacy = candidacy_of(self._settings, clock)
        store, waited = await taken_up(candidacy.try_to_lead()), False
        if store is None:
            store, waited = await self._stand_by(candidacy), True
        if store is None:
            return 0
        spec = self._settings.spec
        if spec is not None and waited and store.read().configured_at:
            _log.info(
                "--spec is not applied: this controller continues with the stored configuration, which"
                " `slotmesh apply FILE` changes",
                spec=str(spec),
            )
            spec = None
        async with lead(
            store,
            front,
            self._settings,
            make_launcher(self._settings, front),
            clock=clock,
            on_end=self._stop.set,
            patience_s=PREDECESSOR_S if waited else 0.0,
            is_held=spec is not None or self._settings.await_apply,
        ) as controller:
            took_over = f", in place of {candidacy.leader.name}" if waited else ", since its start"
            controller.leadership.announce(EventKind.CONTROLLER_LEADS, f"leads, term {store.term}{took_over}")
            observe(self._metrics, controller)
            if spec is not None:
                await apply_spec(spec, controller.configurator)
            if not controller.leadership.lost:
                controller.server.set_serving()
            self._announce_address()
            await self._stop.wait()
        return LEADS_NO_MORE if controller.leadership.lost else 0

    async def _stand_by(self, candidacy: Candidacy) -> Store | None:
        """Waits until this controller leads; None if it is asked to stop before that. Raises CannotStart."""
        if self._settings.if_in_use == "refuse":
            raise CannotStart(
                f"{self._settings.state}: is in use by {candidacy.leader.name}: stop that one, or give this one another"
                " state with --state"
            )
        _require_usable(self._settings)
        front = self.front
        front.leader = lambda: candidacy.leader
        await front.start()
        _log.info("another controller leads; this one stands by", leader=candidacy.leader.name)
        if not front.address:
            _log.warning(
                "this standby's address is unknown to others: replicas that the leader has launched will not find it,"
                " and are replaced when it leads; give the address at which others reach it, with --advertise HOST"
            )
        self._announce_address()
        waiting = asyncio.ensure_future(taken_up(candidacy.wait_to_lead(front.address)))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return await waiting
        finally:
            waiting.cancel()
            stopping.cancel()
            await asyncio.gather(waiting, stopping, return_exceptions=True)
        return None

    def _announce(self) -> None:
        """Once: when it leads, or stands by."""
        self._announce_address = lambda: None
        if self._settings.announce_fd is not None:
            announce(self._settings.announce_fd, self.front.server.address)


def _require_usable(settings: ControllerSettings) -> None:
    """What is read only by a controller that leads is looked at before one stands by.

    Raises SettingsError, CannotStart.
    """
    load_policies(parse_names(settings.autoscale_policies))
    device_rules(settings)
    if settings.spec is not None:
        from slotmesh.spec.document import load_mesh  # noqa: PLC0415 - it loads pydantic, for who gives a --spec

        try:
            load_mesh(settings.spec)
        except InvalidSpec as invalid:
            raise _violations_in(settings.spec, invalid) from invalid


def _violations_in(spec: Path, invalid: InvalidSpec) -> SettingsError:
    return SettingsError(*(f"--spec {spec}: {violation}" for violation in invalid.violations))


def make_launcher(settings: ControllerSettings, front: Front) -> MakeLauncher:
    """Makes the launcher of these settings. What it starts gets the addresses of the standbys of that moment."""
    if settings.launcher == "kubernetes" or settings.watch_pods is not None:
        return _make_kubernetes_launcher(settings, front)
    if settings.launcher == "external":
        return lambda *_: Launcher()

    pools = pools_of(settings)

    def make(address: str, on_exit: OnExit, logs: LogBook) -> ProcessLauncher:
        parent_fd = settings.parent_fd
        if parent_fd is None and not own_process():
            # On a machine without identities of processes nothing could be found again: all ends with the controller.
            parent_fd = ParentPipe().fd
        state = settings.state_place
        path = settings.launch_dir or default_directory(address, state)

        return ProcessLauncher(
            replica_command(
                lambda: _controllers(front, address),
                log_format=settings.log_format,
                log_level=settings.log_level,
                orphan_timeout=settings.orphan_timeout,
                tls=tls_flags(settings),
                parent_fd=parent_fd,
            ),
            on_exit,
            LaunchDirectory.open(
                path, is_temporary=settings.launch_dir is None and state is None and settings.port == 0
            ),
            logs,
            mint_replica_id,
            parent_fd=parent_fd,
            pools=pools,
            device_variables=read_pairs(settings.device_variables or ""),
        )

    return make


def _make_kubernetes_launcher(settings: ControllerSettings, front: Front) -> MakeLauncher:
    """Makes the launcher that needs the API server. Raises CannotStart."""
    try:
        from controller_service.shell.launchers.kubernetes.choosing import launcher_of  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise CannotStart(
            "--launcher kubernetes and --watch-pods need the extra `kubernetes`: pip install 'slotmesh[kubernetes]' "
            f"({error})"
        ) from error
    return lambda address, on_exit, logs: launcher_of(
        settings, on_exit, mint_replica_id, lambda: _controllers(front, front.address or address), logs
    )


def _controllers(front: Front, address: str) -> tuple[str, ...]:
    """The addresses of this controller and its standbys."""
    standbys = front.leadership.standing.standbys if front.leadership is not None else ()
    return (address, *(it for it in standbys if it != address))


def tls_flags(settings: ControllerSettings) -> tuple[str, ...]:
    """For replicas that this controller starts: where they find certificates of their own."""
    flags = {"--tls-dir": settings.tls_dir, "--tls-ca": settings.tls_ca, "--tls-crl": settings.tls_crl}
    return tuple(f"{flag}={path.absolute()}" for flag, path in flags.items() if path is not None)


async def apply_spec(spec: Path, configurator: Configurator) -> None:
    """Changes what the file has changed since the start before. Raises SettingsError with every violation."""
    from slotmesh.spec.document import load_mesh  # noqa: PLC0415 - see above

    try:
        terms = ChangeTerms(origin=ChangeOrigin(who=f"--spec {spec}"))
        outcome = await configurator.apply_file(load_mesh(spec), terms, keep=True)
    except InvalidSpec as invalid:
        raise _violations_in(spec, invalid) from invalid
    except SlotmeshError as refusal:
        raise SettingsError(f"--spec {spec}: {refusal}") from refusal
    for it in outcome.plan.conflicts:
        _log.warning(
            "--spec contradicts an operator's change, and was not applied there; `slotmesh apply --force` applies it",
            resource=it.resource,
            field=it.field,
        )
