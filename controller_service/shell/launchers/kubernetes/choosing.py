"""The launcher of a controller's settings, among those that need the API server of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller_service.config import ControllerSettings
from controller_service.shell.launchers.device_pools import resources_of
from controller_service.shell.launchers.kubernetes.api import PodApi
from controller_service.shell.launchers.kubernetes.launcher import KubernetesLauncher
from controller_service.shell.launchers.kubernetes.manifests import PodManifests, load_template, selector_of
from controller_service.shell.launchers.kubernetes.watching import PodWatchLauncher
from controller_service.shell.launchers.protocol import Launcher, OnExit
from controller_service.shell.replica_logs import LogBook


def launcher_of(
    settings: ControllerSettings,
    on_exit: OnExit,
    mint_id: Callable[[str], str],
    controllers: Callable[[], Sequence[str]],
    book: LogBook,
) -> Launcher:
    """Raises CannotStart. `controllers`: the addresses to which replicas attach, at the time of each start.

    `book` gets the last lines of pods that have ended.
    """
    namespace = settings.kubernetes_namespace
    if settings.watch_pods is not None:
        return PodWatchLauncher(PodApi.connect(namespace, settings.watch_pods))
    manifests = PodManifests(
        mesh=settings.mesh_name,
        template=load_template(settings.pod_template),
        controllers=controllers,
        orphan_timeout=settings.orphan_timeout,
        fence_after=settings.pod_fence_after or settings.orphan_timeout,
        device_resources=resources_of(settings),
    )
    api = PodApi.connect(namespace, selector_of(settings.mesh_name))
    return KubernetesLauncher(api, manifests, on_exit, mint_id, book, owner=settings.kubernetes_owner)
