"""Backends, endpoints, traffic policies and routes, as immutable values.

Purpose: the one model of what should run, shared by the CLI, `--spec`, controller, routers and replicas. Each setting
of a backend is declared here, once, with its default (`slotmesh.spec.setting`). Pure.
Invariants: a value may break `slotmesh.spec.rules` until it was checked; two values are equal exactly if they mean the
same mesh (defaults are filled in, `user_config` holds JSON values only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

from slotmesh.spec.handler_settings import MAX_ONGOING_LIMIT, MIN_SECONDS
from slotmesh.spec.routes import Route
from slotmesh.spec.setting import Change, SettingKind, setting, settings_of
from slotmesh.spec.tenants import TenantLimits

# How many replicas a backend should have, left to the controller: the bounds and the manner. Pure.
#
# Each setting is declared here, once, as those of a backend are in `slotmesh.spec.model`.

MAX_REPLICAS: Final = 10_000
"""Replicas that a backend may have."""
_MAX_DELAY_S: Final = 86_400.0


class AutoscaleMetric(Enum):
    """What the number of replicas follows. The values are those of `slotmesh.v1.AutoscaleMetric`."""

    ONGOING = 1
    """Calls that wait or run."""
    QUEUE_TIME = 2
    """How long calls wait at routers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """The controller chooses the number of replicas, by the load that routers report each second."""

    min: int = setting(1, SettingKind.INTEGER, bounds=(0, MAX_REPLICAS))
    """Replicas that run at least. 0: none does while nothing is called; the first call waits until one has started."""
    max: int = setting(10, SettingKind.INTEGER, bounds=(1, MAX_REPLICAS))
    """Replicas that run at most."""
    metric: AutoscaleMetric = setting(AutoscaleMetric.ONGOING, SettingKind.CHOICE)
    """What the number follows: calls that wait or run, or how long calls wait at routers."""
    target_ongoing: float = setting(2.0, SettingKind.NUMBER, bounds=(0.01, 1_000_000.0))
    """Calls that wait or run, for each replica. With `queue_time`: how many a replica may have for one to be spared."""
    target_queue_time_s: float = setting(0.1, SettingKind.DURATION, bounds=(0.001, _MAX_DELAY_S))
    """With `queue_time`: calls that wait for longer want more replicas."""
    up_delay_s: float = setting(3.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """More replicas start once the load has asked for them for so long. The first of none starts at once."""
    down_delay_s: float = setting(60.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """Replicas drain once the load has not needed them for so long."""
    idle_timeout_s: float = setting(300.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """With `min: 0`: the last replicas drain once nothing has waited or run for so long."""
    up_rate: float = setting(4.0, SettingKind.NUMBER, bounds=(1.0, float(MAX_REPLICAS)))
    """How many times as many there may be after one step up; one more always."""
    down_rate: float = setting(0.5, SettingKind.NUMBER, bounds=(0.0, 1.0))
    """The share of them that one step down may take; one always."""
    policy: str = setting("", SettingKind.HANDLER)
    """A function that says how many should run, of those that the controller's `--autoscale-policies` names."""


JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

MAX_TIME_S: Final = 86_400.0
"""The longest time that a setting may have, seconds."""
_NOTHING: Mapping[str, JsonValue] = MappingProxyType({})


class BalancerName(Enum):
    """How a router picks a replica for unkeyed calls. The values are those of `slotmesh.v1.Balancer`."""

    LEAST_LOADED = 1
    POWER_OF_TWO = 2
    ROUND_ROBIN = 3


class SloScope(Enum):
    """Among which calls SLOs order. The values are those of `slotmesh.v1.SloScope`."""

    CLIENT = 1
    BACKEND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One version of a handler and its settings: a group of identical replicas. None is what a document leaves out."""

    name: str
    handler: str = setting("", SettingKind.HANDLER, change=Change.REPLACES)
    """The class or function. May be left out where the controller does not start the replicas."""
    version: str = setting("", SettingKind.TEXT, bounds=(0, 100), change=Change.REPLACES)
    """The name of the version of the code: another one replaces replicas. Unset, where the controller launches them: a
    digest of all files of the project, taken by each `apply`."""
    code: str = setting("", SettingKind.TEXT, bounds=(0, 200), change=Change.REPLACES, is_filled_in=True)
    """The code that replicas run: the digest of the snapshot that the controller has taken under that version, or
    `dist:NAME==VERSION`, an installed distribution. Empty: what each replica finds."""
    num_replicas: int | None = setting(None, SettingKind.INTEGER, bounds=(0, MAX_REPLICAS))
    """Replicas that should run. Unset: 1 where the controller launches them, and any number where not."""
    autoscale: Autoscale | None = setting(None, SettingKind.SECTION, section=Autoscale)
    """The controller chooses the number of replicas, by the load; `num_replicas` is left out then."""
    max_ongoing: int | None = setting(None, SettingKind.INTEGER, bounds=(1, MAX_ONGOING_LIMIT))
    """Calls that one replica executes at once. Unset: what the handler's decorator says."""
    prefetch: int | None = setting(None, SettingKind.INTEGER, bounds=(0, MAX_ONGOING_LIMIT))
    """Unkeyed calls that may wait at a replica. Unset: what the handler's decorator says."""
    user_config: Mapping[str, JsonValue] = setting(_NOTHING, SettingKind.JSON, change=Change.GIVEN_TO_HANDLERS)
    """Arguments of the handler's constructor, by name."""
    max_queued_calls: int = setting(20_000, SettingKind.INTEGER, bounds=(1, 10_000_000), is_routed=True)
    """Calls that may wait in one router."""
    max_queued_bytes: int = setting(256 * 2**20, SettingKind.SIZE, bounds=(1, 2**40), is_routed=True)
    """Payload bytes that may wait in one router."""
    max_queue_time_s: float = setting(30.0, SettingKind.DURATION, bounds=(0.001, MAX_TIME_S), is_routed=True)
    """Time a call may wait in the queue."""
    max_wire_batch_size: int = setting(1024, SettingKind.INTEGER, bounds=(1, 100_000), is_routed=True)
    """Calls that travel to a replica as one batch, at most."""
    balancer: BalancerName = setting(BalancerName.LEAST_LOADED, SettingKind.CHOICE, is_routed=True)
    """How a router picks a replica for unkeyed calls."""
    slo_scope: SloScope = setting(SloScope.CLIENT, SettingKind.CHOICE, is_routed=True)
    """Among which unkeyed calls SLOs order: each client's, while clients take turns, or all that wait in a router."""
    graceful_timeout_s: float = setting(30.0, SettingKind.DURATION, bounds=(0.0, MAX_TIME_S))
    """Time a draining replica has to finish what runs."""
    health_check_period_s: float | None = setting(None, SettingKind.DURATION, bounds=(MIN_SECONDS, MAX_TIME_S))
    """How often a handler's `check_health` is called. Unset: what the handler's decorator says."""
    health_check_timeout_s: float | None = setting(None, SettingKind.DURATION, bounds=(MIN_SECONDS, MAX_TIME_S))
    """How long `check_health` may take. Unset: what the handler's decorator says."""
    own_loop: bool | None = setting(None, SettingKind.FLAG, change=Change.REPLACES)
    """Whether the handler has an event loop of its own, in a thread. Unset: what the handler's decorator says."""
    max_surge: int | None = setting(None, SettingKind.INTEGER, bounds=(0, 10_000))
    """Replicas beyond `num_replicas` that may run during a rollout. Unset: a quarter of these, 1 at least."""
    max_unavailable: int | None = setting(None, SettingKind.INTEGER, bounds=(0, 10_000))
    """Replicas short of `num_replicas` that may be ready during a rollout. Unset: 0, or 1 where `max_surge` is 0."""
    min_ready_s: float = setting(1.0, SettingKind.DURATION, bounds=(0.0, MAX_TIME_S))
    """For how long a new replica is ready before an old one leaves for it."""
    progress_deadline_s: float = setting(600.0, SettingKind.DURATION, bounds=(0.1, MAX_TIME_S))
    """Time a new replica has to get ready; a rollout goes back when one takes longer."""
    max_error_rate: float = setting(0.1, SettingKind.NUMBER, bounds=(0.0, 1.0))
    """By how much the share of calls that fail may be larger at new replicas than at old ones: a rollout goes back when
    it is. 1: never."""

    @property
    def least_replicas(self) -> int:
        """Replicas that run at least, where the controller launches them."""
        if self.autoscale is not None:
            return self.autoscale.min
        return 1 if self.num_replicas is None else self.num_replicas

    def routed(self) -> Backend:
        """What routers read of it; all else has its default."""
        return Backend(name=self.name, **{attribute: getattr(self, attribute) for attribute in _ROUTED_ATTRIBUTES})


SETTINGS: Final = settings_of(Backend)
"""The settings of a backend, by their names in documents and on the wire."""
DOCUMENT_SETTINGS: Final = {name: each for name, each in SETTINGS.items() if not each.is_filled_in}
"""Those that documents have."""
CODE: Final = "file:"
"""How a version begins that is named after the digest of its code."""
DISTRIBUTION: Final = "dist:"
"""How a version, or code, begins that is an installed distribution: `dist:NAME==VERSION`."""
RENAMED: Final = {"max_batch_size": "max_wire_batch_size"}
"""Settings by the names that they had: `@slotmesh.batch` has a `max_batch_size` that means another thing."""
ROUTED: Final = {name: each for name, each in SETTINGS.items() if each.is_routed}
"""Those that routers read."""
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
    """Full names, sorted; empty: none."""
    descriptor_set: bytes = field(default=b"", repr=False)
    """A FileDescriptorSet with the files that declare them, and all that these import. Opaque here."""


NO_SERVICES: Final = GrpcServices()
MAX_SERVICES: Final = 64
MAX_DESCRIPTOR_BYTES: Final = 256 * 1024
"""Of the descriptors of one endpoint: they are part of routing tables and of the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A public name that clients call."""

    name: str
    traffic: TrafficPolicy | None = None
    """None: calls queue until a policy comes."""
    grpc_services: GrpcServices | None = None
    """Rpcs of the user's own that it answers. None: none; in what is applied, as they are there, and `NO_SERVICES`
    that there are none."""
    tenants: TenantLimits | None = None
    """What each tenant may have. None: no limits; in what is applied, as they are, and `NO_LIMITS` that there are
    none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A whole mesh, as a `mesh.yaml` says it. Names are unique within each tuple once it was checked."""

    backends: tuple[Backend, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One thing that is wrong in a specification."""

    path: str
    """Where, as `endpoints.digits.traffic`."""
    message: str
    """What is wrong and what would be right."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidSpec(ValueError):
    """A specification with mistakes: all of them, in the order of their paths."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(dict.fromkeys(sorted(mistakes)))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def is_named_by_code(version: str) -> bool:
    """Whether the controller has named a version, and no person."""
    return version.startswith((CODE, DISTRIBUTION))


# Whether replicas of a backend that has no ready one are on their way.
#
# Owner: the controller says it in routing tables, routers decide by it whether calls wait.


class Prospect(Enum):
    """What becomes of a backend without a ready replica. The values are those of `slotmesh.v1.Prospect`."""

    UNKNOWN = 0
    """The controller does not say: some may come."""
    COMING = 1
    """Replicas are starting, or will be in a moment."""
    FAILING = 2
    """The newest ones that were started have ended before they were ready, and so may the next."""
    NONE = 3
    """None should run."""
