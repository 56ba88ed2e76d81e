"""Backends, endpoints, traffic policies and routes, as immutable values.

Purpose: the one model of what should run, shared by the CLI, `--spec`, controller, routers and replicas. Each setting
of a backend is declared here, once, with its default (`slotmesh.spec.setting`). Pure.
Invariants: a value may break `slotmesh.spec.rules` until it is validated; two values are equal exactly if they mean the
same mesh (defaults are filled in, `user_config` holds JSON values only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

from slotmesh.spec.environment import MAX_PATH_CHARS, NO_ENVIRONMENT, EnvironmentValue, ProcessSettings
from slotmesh.spec.handler_settings import MAX_ONGOING_LIMIT, MIN_SECONDS
from slotmesh.spec.routes import Route
from slotmesh.spec.setting import Change, SettingKind, setting, settings_of
from slotmesh.spec.tenants import TenantLimits

MAX_REPLICAS: Final = 10_000
"""The limit of replicas of one backend."""
_MAX_DELAY_S: Final = 86_400.0


class AutoscaleMetric(Enum):
    """What the number of replicas follows. The values are those of `slotmesh.v1.AutoscaleMetric`."""

    ONGOING = 1
    """Calls that wait or run."""
    QUEUE_TIME = 2
    """How long calls wait at routers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """How the controller chooses the number of replicas, by the load that routers report each second."""

    min: int = setting(1, SettingKind.INTEGER, bounds=(0, MAX_REPLICAS))
    """The lowest number of replicas. 0: none runs while the backend is idle; the first call waits for a start."""
    max: int = setting(10, SettingKind.INTEGER, bounds=(1, MAX_REPLICAS))
    """The highest number of replicas."""
    metric: AutoscaleMetric = setting(AutoscaleMetric.ONGOING, SettingKind.CHOICE)
    """The load that the number follows: calls that wait or run, or the time that calls wait at routers."""
    target_ongoing: float = setting(2.0, SettingKind.NUMBER, bounds=(0.01, 1_000_000.0))
    """Waiting and running calls per replica. With `queue_time`: replicas are removed only if the rest stays below."""
    target_queue_time_s: float = setting(0.1, SettingKind.DURATION, bounds=(0.001, _MAX_DELAY_S))
    """With `queue_time`: more replicas start if calls wait longer than this."""
    up_delay_s: float = setting(3.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """More replicas start after the load has required them for this time. The first replica starts immediately."""
    down_delay_s: float = setting(60.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """Replicas drain after the load has not required them for this time."""
    idle_timeout_s: float = setting(300.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """With `min: 0`: the last replicas drain after no call has waited or run for this time."""
    up_rate: float = setting(4.0, SettingKind.NUMBER, bounds=(1.0, float(MAX_REPLICAS)))
    """The factor by which one step up may raise the number; a step may always add one replica."""
    down_rate: float = setting(0.5, SettingKind.NUMBER, bounds=(0.0, 1.0))
    """The share of the replicas that one step down may remove; a step may always remove one."""
    policy: str = setting("", SettingKind.HANDLER)
    """The function that chooses the number, one of those that the controller's `--autoscale-policies` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """The pods of a backend's replicas, with `--launcher kubernetes`; other launchers do not read it."""

    image: str = setting("", SettingKind.TEXT, bounds=(0, 500))
    """The image, which has the handler's code. Unset: that of the controller's `--pod-template`."""
    cpu: str = setting("", SettingKind.TEXT, bounds=(0, 20))
    """CPU that each pod requests, as Kubernetes writes it: `500m`, `2`. Unset: as in `--pod-template`."""
    memory: str = setting("", SettingKind.TEXT, bounds=(0, 20))
    """Memory that each pod requests, and its limit, as Kubernetes writes it: `512Mi`. Unset: as in `--pod-template`."""


JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"


def plain_json(value: JsonValue) -> JsonValue:
    """Lists and dicts in place of read-only mappings and tuples."""
    if isinstance(value, Mapping):
        return {name: plain_json(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_json(inner) for inner in value]
    return value


MAX_TIME_S: Final = 86_400.0
"""The longest time that a setting may have, in seconds."""
_NOTHING: Mapping[str, JsonValue] = MappingProxyType({})
_NO_AMOUNTS: Mapping[str, float] = MappingProxyType({})


BUILT_IN_BALANCERS: Final = ("least_loaded", "power_of_two", "round_robin")
"""The balancers that each router has; the first one is the default."""


class SloScope(Enum):
    """The scope in which SLOs order calls. The values are those of `slotmesh.v1.SloScope`."""

    CLIENT = 1
    BACKEND = 2


class Affinity(Enum):
    """What routers read from calls to find the replica that suits them. The values are those of `slotmesh.v1.Affinity`.

    Call options that prefer a replica work with each of them.
    """

    NONE = 1
    """Nothing."""
    PREFIX = 2
    """The beginning of the argument that `@slotmesh.prefix_argument` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One version of a handler and its settings: a group of identical replicas. None: not in the document."""

    name: str
    handler: str = setting("", SettingKind.HANDLER, change=Change.REPLACES)
    """The class or function. Optional if the controller does not start the replicas."""
    version: str = setting("", SettingKind.TEXT, bounds=(0, 100), change=Change.REPLACES)
    """The name of the version of the code; a new name replaces the replicas. Unset, if the controller launches them: a
    digest of all files of the project, computed by each `apply`."""
    code: str = setting("", SettingKind.TEXT, bounds=(0, 200), change=Change.REPLACES, is_filled_in=True)
    """The code that replicas run: the digest of the snapshot that the controller stored for that version, or
    `dist:NAME==VERSION`, an installed distribution. Empty: replicas import what is installed where they run."""
    num_replicas: int | None = setting(None, SettingKind.INTEGER, bounds=(0, MAX_REPLICAS))
    """The number of replicas. Unset: 1 if the controller launches them, any number otherwise."""
    autoscale: Autoscale | None = setting(None, SettingKind.SECTION, section=Autoscale)
    """The controller chooses the number of replicas by the load. Excludes `num_replicas`."""
    max_ongoing: int | None = setting(None, SettingKind.INTEGER, bounds=(1, MAX_ONGOING_LIMIT))
    """Calls that one replica executes at the same time. Unset: the value of the handler's decorator."""
    prefetch: int | None = setting(None, SettingKind.INTEGER, bounds=(0, MAX_ONGOING_LIMIT))
    """Unkeyed calls that may wait at a replica. Unset: the value of the handler's decorator."""
    user_config: Mapping[str, JsonValue] = setting(_NOTHING, SettingKind.JSON, change=Change.GIVEN_TO_HANDLERS)
    """Arguments of the handler's constructor, by name."""
    max_queued_calls: int = setting(20_000, SettingKind.INTEGER, bounds=(1, 10_000_000), is_routed=True)
    """Calls that may wait in one router."""
    max_queued_bytes: int = setting(256 * 2**20, SettingKind.SIZE, bounds=(1, 2**40), is_routed=True)
    """Payload bytes that may wait in one router."""
    max_queue_time_s: float = setting(30.0, SettingKind.DURATION, bounds=(0.001, MAX_TIME_S), is_routed=True)
    """The longest time that a call may wait in the queue."""
    max_wire_batch_size: int = setting(1024, SettingKind.INTEGER, bounds=(1, 100_000), is_routed=True)
    """The largest number of calls in one batch on the wire to a replica."""
    balancer: str = setting(BUILT_IN_BALANCERS[0], SettingKind.BALANCER, is_routed=True)
    """How a router picks a replica for unkeyed calls: `least_loaded`, `power_of_two` or `round_robin`, or one of the
    routers' `--balancers`, as `MODULE:NAME`, or an entry point of the group `slotmesh.balancers`, by its name."""
    slo_scope: SloScope = setting(SloScope.CLIENT, SettingKind.CHOICE, is_routed=True)
    """The scope in which SLOs order unkeyed calls: within each client, with clients in turn, or across the router."""
    affinity: Affinity = setting(Affinity.NONE, SettingKind.CHOICE, is_routed=True, is_newer=True)
    """`prefix`: unkeyed calls go to the replica that was sent the longest beginning of their prompt, unless it is
    overloaded. Methods name the argument with `@slotmesh.prefix_argument`."""
    graceful_timeout_s: float = setting(30.0, SettingKind.DURATION, bounds=(0.0, MAX_TIME_S))
    """Time that a draining replica has to finish its calls."""
    health_check_period_s: float | None = setting(None, SettingKind.DURATION, bounds=(MIN_SECONDS, MAX_TIME_S))
    """The interval of calls of a handler's `check_health`. Unset: the value of the handler's decorator."""
    health_check_timeout_s: float | None = setting(None, SettingKind.DURATION, bounds=(MIN_SECONDS, MAX_TIME_S))
    """The timeout of `check_health`. Unset: the value of the handler's decorator."""
    pod: PodSettings | None = setting(None, SettingKind.SECTION, section=PodSettings, change=Change.REPLACES)
    """The image and the resources of replicas' pods, with `--launcher kubernetes`. Other launchers ignore it."""
    env: Mapping[str, EnvironmentValue] = setting(
        NO_ENVIRONMENT, SettingKind.ENVIRONMENT, change=Change.REPLACES, is_newer=True
    )
    """Environment variables of replicas, by name, besides those of the controller: text, `{inherit: true}` or `{file:
    PATH}`."""
    python: str = setting("", SettingKind.TEXT, bounds=(0, MAX_PATH_CHARS), change=Change.REPLACES, is_newer=True)
    """The interpreter of replicas, or the folder of a virtual environment, with slotmesh in it. Unset: the controller's
    own."""
    cwd: str = setting("", SettingKind.TEXT, bounds=(0, MAX_PATH_CHARS), change=Change.REPLACES, is_newer=True)
    """The folder that replicas run in. Unset: the controller's."""
    cpus: float | None = setting(
        None, SettingKind.NUMBER, bounds=(0.01, 4_096.0), change=Change.REPLACES, is_newer=True
    )
    """CPUs of one replica, rounded up: it is pinned to that number, and so are the threads of numeric libraries."""
    memory: int | None = setting(None, SettingKind.SIZE, bounds=(2**20, 2**50), change=Change.REPLACES, is_newer=True)
    """Memory of one replica, whose process is killed if it uses more."""
    devices: Mapping[str, float] = setting(_NO_AMOUNTS, SettingKind.AMOUNTS, change=Change.REPLACES, is_newer=True)
    """Devices that each replica holds, by pool, as `{cuda: 1}`: a whole number, or a share below 1. The controller's
    `--devices` has the pools."""
    own_loop: bool | None = setting(None, SettingKind.FLAG, change=Change.REPLACES)
    """Whether the handler runs on its own event loop, in a thread. Unset: the value of the handler's decorator."""
    max_surge: int | None = setting(None, SettingKind.INTEGER, bounds=(0, 10_000))
    """Replicas above `num_replicas` that may run during a rollout. Unset: a quarter of `num_replicas`, at least 1."""
    max_unavailable: int | None = setting(None, SettingKind.INTEGER, bounds=(0, 10_000))
    """Replicas below `num_replicas` that may be ready during a rollout. Unset: 0, or 1 if `max_surge` is 0."""
    min_ready_s: float = setting(1.0, SettingKind.DURATION, bounds=(0.0, MAX_TIME_S))
    """How long a new replica must be ready before an old one drains for it."""
    progress_deadline_s: float = setting(600.0, SettingKind.DURATION, bounds=(0.1, MAX_TIME_S))
    """Time that a new replica has to become ready; if one takes longer, the rollout is rolled back."""
    max_error_rate: float = setting(0.1, SettingKind.NUMBER, bounds=(0.0, 1.0))
    """The error rate of new replicas may exceed that of old ones by this much; if it is higher, the rollout is rolled
    back. 1: never."""

    @property
    def most_replicas(self) -> int:
        """The highest number of replicas, if the controller launches them; rollouts may add some."""
        if self.autoscale is not None:
            return self.autoscale.max
        return 1 if self.num_replicas is None else self.num_replicas

    @property
    def least_replicas(self) -> int:
        """The lowest number of replicas, if the controller launches them."""
        if self.autoscale is not None:
            return self.autoscale.min
        return 1 if self.num_replicas is None else self.num_replicas

    @property
    def process(self) -> ProcessSettings:
        """What the processes of its replicas are started with."""
        return ProcessSettings(env=self.env, python=self.python, cwd=self.cwd, cpus=self.cpus, memory=self.memory)

    def routed(self) -> Backend:
        """A copy with the settings that routers read; all others have their defaults."""
        return Backend(name=self.name, **{attribute: getattr(self, attribute) for attribute in _ROUTED_ATTRIBUTES})


SETTINGS: Final = settings_of(Backend)
"""The settings of a backend, by their names in documents and on the wire."""
DOCUMENT_SETTINGS: Final = {name: each for name, each in SETTINGS.items() if not each.is_filled_in}
"""The settings that documents may have."""
CODE: Final = "file:"
"""Prefix of a version that is named after the digest of its code."""
DISTRIBUTION: Final = "dist:"
"""Prefix of a version, or code, that is an installed distribution: `dist:NAME==VERSION`."""
RENAMED: Final = {"max_batch_size": "max_wire_batch_size"}
"""New names by former ones: the `max_batch_size` of `@slotmesh.batch` is a different setting."""
ROUTED: Final = {name: each for name, each in SETTINGS.items() if each.is_routed}
"""The settings that routers read."""
_ROUTED_ATTRIBUTES: Final = tuple(each.attribute for each in ROUTED.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPolicy:
    """How an endpoint's calls are divided."""

    weights: Mapping[str, float]
    """Share of each backend, by name; they sum to 1."""
    shadows: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Backends that get a sampled copy: probability of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServices:
    """Services of the user's own protos, which an endpoint's handler implements."""

    names: tuple[str, ...] = ()
    """Full names, sorted. Empty if there are none."""
    descriptor_set: bytes = field(default=b"", repr=False)
    """A FileDescriptorSet with the files that declare the services, and all that these import. Opaque here."""


NO_SERVICES: Final = GrpcServices()
MAX_SERVICES: Final = 64
MAX_DESCRIPTOR_BYTES: Final = 256 * 1024
"""The limit for the descriptors of one endpoint, which are part of routing tables and of the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A public name that clients call."""

    name: str
    traffic: TrafficPolicy | None = None
    """None: calls queue until a policy is set."""
    grpc_services: GrpcServices | None = None
    """The endpoint's own gRPC services. None: it has none. In a change: None keeps the present ones, `NO_SERVICES`
    removes them."""
    tenants: TenantLimits | None = None
    """Limits per tenant. None: no limits. In a change: None keeps the present ones, `NO_LIMITS` removes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A whole mesh, as `mesh.yaml` declares it. Names are unique within each tuple once it is validated."""

    backends: tuple[Backend, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class SpecViolation:
    """One violation of the rules of a specification."""

    path: str
    """Where, as `endpoints.digits.traffic`."""
    message: str
    """The problem, and what would be valid."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidSpec(ValueError):
    """A specification with violations: all of them, sorted by path."""

    def __init__(self, violations: Sequence[SpecViolation]) -> None:
        self.violations = tuple(dict.fromkeys(sorted(violations)))
        super().__init__("\n".join(str(violation) for violation in self.violations))


def is_named_by_code(version: str) -> bool:
    """Whether the controller derived this version from the code, and no user chose it."""
    return version.startswith((CODE, DISTRIBUTION))


class Prospect(Enum):
    """Whether replicas of a backend without a ready one are expected. The values are those of `slotmesh.v1.Prospect`.

    The controller sets it in routing tables; routers decide by it whether calls wait.
    """

    UNKNOWN = 0
    """Not reported by the controller: treated as if some were expected."""
    COMING = 1
    """Replicas are starting, or will start shortly."""
    FAILING = 2
    """The replicas started last ended before they were ready."""
    NONE = 3
    """No replica should run."""
