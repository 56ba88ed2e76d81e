"""Settings of the controller."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

from controller_service.core.event_log import EventBounds
from slotmesh.config import Duration, Size, check_functions
from slotmesh.config.declaring import Field, model_validator
from slotmesh.config.etcd import PLAIN_ACCESS, EtcdAccess, EtcdPlace, etcd_place
from slotmesh.config.members import TokenPortSettings
from slotmesh.config.reading import FlagOnly
from slotmesh.spec.devices import read_pairs, read_pools, variables_of
from slotmesh.units import format_duration

MEMORY: Final = "memory"
"""The state that is nowhere else."""
SHORTEST_LEASE: Final = timedelta(seconds=2)
"""Two intervals of members' reports, which are a second apart."""


_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_OF_LAUNCHER: Final = {
    "process": ("device_variables",),
    "kubernetes": ("pod_template", "kubernetes_owner", "pod_fence_after", "device_resources"),
    "external": ("watch_pods",),
}
"""Settings that other launchers would ignore."""


def _check_label(name: str) -> None:
    if not _LABEL.fullmatch(name):
        raise ValueError(
            f"{name!r} is no value of a Kubernetes label: 1 to 63 of `a-z A-Z 0-9 - _ .`, first and last a letter "
            "or digit"
        )


def _check_lease(lease: timedelta) -> None:
    if lease < SHORTEST_LEASE:
        raise ValueError(
            f"{format_duration(lease)} is shorter than two reports of members, which are a second apart: one late "
            f"report would make them suspect; {format_duration(SHORTEST_LEASE)} or more"
        )


class HelloBounds(NamedTuple):
    """What routers may send before they are attached. See the settings of the controller."""

    table_bytes: int
    """Of one table, as it travels."""
    tables_bytes: int
    """Of the tables of all routers that were not learnt from yet."""
    table_parts: int
    timeout_s: float
    """From the beginning of the stream to the hello."""


class ControllerSettings(TokenPortSettings):
    """The controller of slotmesh: what should run, what does run, and how traffic is divided."""

    port: int = Field(7070, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    metrics_port: int = Field(
        9464, ge=-1, le=65_535, description="Port of the Prometheus endpoint; 0: a free one, -1: none."
    )
    spec: Path | None = Field(None, description="A mesh.yaml that is applied at the start.")
    state: str = Field(
        MEMORY,
        min_length=1,
        check=etcd_place,
        description="What keeps what should run, who owns which keys and the history of changes: a file on a local "
        "disk; etcd, as `etcd://HOST:PORT,HOST:PORT/MESH`; `memory`: it ends with this process.",
    )
    etcd_ca: Path | None = Field(
        None,
        description="PEM file with the authorities of the members of etcd, for a --state there; not given: plain text.",
    )
    etcd_cert: Path | None = Field(
        None, description="PEM file with the own certificate for etcd, for --etcd-key; needs --etcd-ca."
    )
    etcd_key: Path | None = Field(
        None, description="PEM file with its private key, which other users of the machine cannot read (mode 600)."
    )
    etcd_user: str = Field(
        "", description="User of etcd, which has readwrite on /slotmesh/MESH/; needs --etcd-password-file."
    )
    etcd_password_file: Path | None = Field(
        None, description="File with its password, which other users of the machine cannot read (mode 600)."
    )
    if_in_use: Literal["stand-by", "refuse"] = Field(
        "stand-by",
        description="What to do where another controller has the state of --state: wait, and take over when that one "
        "ends, or do not start.",
    )
    export_state: Annotated[bool, FlagOnly()] = Field(False, description="Print what --state has, as JSON, and exit.")
    import_state: Annotated[str | None, FlagOnly()] = Field(
        None, min_length=1, description="Make what --state names from such JSON, - being stdin, and exit."
    )
    launcher: Literal["process", "kubernetes", "external"] = Field(
        "process",
        description="Who starts replicas: this controller, as processes on this machine or as pods of its Kubernetes "
        "cluster (needs slotmesh[kubernetes]), or another system; then they attach by themselves.",
    )
    mesh_name: str = Field(
        "default",
        check=_check_label,
        description="Label of the pods that this controller starts: it takes over those of this name, so it must be "
        "the only mesh of that name in the namespace.",
    )
    kubernetes_namespace: str | None = Field(
        None, min_length=1, max_length=63, description="Namespace of pods. Not given: that of the service account."
    )
    pod_template: Path | None = Field(
        None,
        description="With --launcher kubernetes: a file with a Pod, in YAML, of which each pod is a copy. The replica "
        "runs in the container named `replica`, or in the only one.",
    )
    kubernetes_owner: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="With --launcher kubernetes: a ConfigMap that owns all pods: Kubernetes deletes them with it.",
    )
    pod_fence_after: Duration | None = Field(
        None,
        ge=timedelta(seconds=2),
        le=timedelta(hours=24),
        description="With --launcher kubernetes: --fence-after of its replicas. The keys of one on a node that is lost "
        "wait for this time; all replicas end if no controller leads for as long. Not given: as --orphan-timeout.",
    )
    watch_pods: str | None = Field(
        None,
        min_length=1,
        description="With --launcher external: a label selector of the pods in which replicas run, as `app=mesh`: "
        "their ordering keys move when Kubernetes reports the end of the pod (needs slotmesh[kubernetes]).",
    )
    lease: Duration = Field(
        timedelta(seconds=3),
        le=timedelta(hours=1),
        check=_check_lease,
        description="Silence after which a replica is suspect, and a router is no longer listed. Members report every "
        "second, and one late report must not make them drop off.",
    )
    dead_after: Duration = Field(
        timedelta(seconds=10),
        ge=SHORTEST_LEASE,
        le=timedelta(hours=24),
        description="Silence after which a replica that this controller has started is killed and replaced; not "
        "shorter than --lease. One that starts may be silent for two minutes.",
    )

    orphan_timeout: Duration = Field(
        timedelta(minutes=5),
        gt=timedelta(0),
        le=timedelta(days=30),
        description="How long replicas that this controller has started go on serving without any controller; then "
        "they drain and end. A controller that comes back to the same address before takes them over.",
    )
    on_stop: Literal["drain", "leave"] | None = Field(
        None,
        description="What SIGTERM means for replicas that this controller has started: they drain and end, or they go "
        "on for --orphan-timeout, as they do where the controller is killed. They go on in any case where another "
        "controller stands by: that one has them from then on. Not given: processes drain, pods go on.",
    )
    launch_dir: Path | None = Field(
        None,
        description="Where records and output of started replicas are kept, for one controller at a time. Not given: a "
        "directory for the file of --state, or for this address, among the machine's temporary files.",
    )
    devices: str = Field(
        "",
        max_length=20_000,
        check=read_pools,
        description="Devices of this machine that replicas hold, for the `devices` of backends: `cuda=0-3`, "
        "`cuda=0-3,fpga=a,b`. `cuda=auto`: those of CUDA_VISIBLE_DEVICES, or that NVML finds (slotmesh[nvidia]).",
    )
    device_variables: str | None = Field(
        None,
        min_length=1,
        check=read_pairs,
        description="The variable in which replicas find their devices of a pool, as `cuda=HIP_VISIBLE_DEVICES`. Not "
        "given: the name of the pool, as CUDA_VISIBLE_DEVICES.",
    )
    device_resources: str | None = Field(
        None,
        min_length=1,
        check=read_pairs,
        description="With --launcher kubernetes: the resource that pods request for devices of a pool. Not given: "
        "`cuda=nvidia.com/gpu`.",
    )
    max_code_size: Size = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="Size of the code of a handler's project, of which each version is kept as a snapshot. What "
        ".slotmeshignore and .gitignore name is no part of it.",
    )
    max_code_files: int = Field(20_000, ge=1, le=1_000_000, description="Files in the project of a handler, likewise.")
    await_apply: Annotated[bool, FlagOnly()] = Field(
        False,
        description="Start no replicas before a mesh was applied: each handler is constructed once, of the code that "
        "is applied, and not of that before.",
    )
    replica_log_size: Size = Field(
        16 * 1024 * 1024,
        ge=64 * 1024,
        description="Size at which the file with a replica's output is rotated; one older file is kept.",
    )
    replica_output: Literal["echo", "file"] = Field(
        "echo",
        description="Where the output of started replicas goes: to this process's stderr as well, or to their files "
        "only. `slotmesh logs` shows it either way.",
    )

    max_events: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Events that are kept for `slotmesh events`, those of earlier controllers with the same --state "
        "included.",
    )
    max_events_size: Size = Field(
        8 * 1024 * 1024, ge=64 * 1024, description="Size of their texts, and 100 bytes for each of them."
    )
    max_router_table_size: Size = Field(
        256 * 1024 * 1024,
        ge=1024 * 1024,
        description="Largest routing table that a router may bring when it attaches, in bytes as it travels.",
    )
    max_router_tables_size: Size = Field(
        512 * 1024 * 1024,
        ge=1024 * 1024,
        description="Bytes of the tables of all routers that attach, until the controller has learnt from them; a "
        "router that finds no room attaches later.",
    )
    max_router_table_parts: int = Field(
        10_000, ge=1, description="Parts of such a table; a router sends parts of about 32 KiB."
    )
    router_hello_timeout: Duration = Field(
        timedelta(minutes=1),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="Time that a router has to attach, with the parts of its table.",
    )
    max_changes_per_caller: int = Field(
        20,
        ge=1,
        description="Changes a second of one caller, known by certificate or token; those of ten seconds may come at "
        "once.",
    )
    max_operation_waits: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Rpcs that wait for operations at a time (WaitOperations); of one caller, three quarters of them.",
    )
    autoscale_policies: str = Field(
        "",
        check=check_functions,
        description="Functions that backends may name as the policy of their `autoscale`, as `my_policies:nightly`; "
        "separated by commas. They are imported at the start.",
    )

    @property
    def hello_bounds(self) -> HelloBounds:
        return HelloBounds(
            table_bytes=self.max_router_table_size,
            tables_bytes=self.max_router_tables_size,
            table_parts=self.max_router_table_parts,
            timeout_s=self.router_hello_timeout.total_seconds(),
        )

    @property
    def etcd(self) -> EtcdPlace | None:
        """Where the state is in etcd; None if it is elsewhere."""
        return etcd_place(self.state)

    @property
    def etcd_access(self) -> EtcdAccess:
        return EtcdAccess(self.etcd_ca, self.etcd_cert, self.etcd_key, self.etcd_user, self.etcd_password_file)

    @property
    def state_place(self) -> Path | EtcdPlace | None:
        """What keeps the state; None if it is in memory."""
        return None if self.state == MEMORY else self.etcd or Path(self.state)

    @property
    def event_bounds(self) -> EventBounds:
        return EventBounds(self.max_events, self.max_events_size)

    @property
    def give_up_after_s(self) -> float:
        """How long a replica that this controller has started may be suspect before it is killed, seconds."""
        return (self.dead_after - self.lease).total_seconds()

    @property
    def drains_on_stop(self) -> bool:
        """Whether SIGTERM ends the replicas that this controller has started."""
        return self.on_stop == "drain" or (self.on_stop is None and self.launcher == "process")

    @property
    def is_announced(self) -> bool:
        """Its address is announced to others only if another controller stands by."""
        return False

    @property
    def tls_names(self) -> tuple[str, ...]:
        return ("controller",)

    @model_validator
    def _has_certificates_for_replicas(self) -> Self:
        if self.launcher == "process" and self.tls_dir is None and self.tls_cert is not None:
            raise ValueError(
                "--tls-dir is required with --launcher process: replicas that it starts need certificates of their own"
            )
        return self

    @model_validator
    def _are_of_the_launcher(self) -> Self:
        for launcher, names in _OF_LAUNCHER.items():
            for name in names if self.launcher != launcher else ():
                if getattr(self, name) is not None:
                    raise ValueError(f"--{name.replace('_', '-')} is for --launcher {launcher}: leave it out")
        return self

    @model_validator
    def _are_devices_of_this_machine(self) -> Self:
        if self.devices and self.launcher != "process":
            raise ValueError("--devices is for --launcher process: leave it out")
        pools, named = read_pools(self.devices), read_pairs(self.device_variables or "")
        if unknown := named.keys() - pools.keys():
            raise ValueError(f"--device-variables: --devices has no pool {', '.join(sorted(unknown))}")
        try:
            variables_of(pools, named)
        except ValueError as error:
            raise ValueError(f"--device-variables: {error}") from None
        return self

    @model_validator
    def _are_in_order(self) -> Self:
        if self.dead_after < self.lease:
            raise ValueError(
                f"--dead-after ({format_duration(self.dead_after)}) is shorter than --lease "
                f"({format_duration(self.lease)}): a replica is suspect first, and dead only later"
            )
        return self

    @model_validator
    def _has_whole_access(self) -> Self:
        access = self.etcd_access
        moves = self.export_state or self.import_state  # the environment may have the settings of the other place
        if self.etcd is None and access != PLAIN_ACCESS and not moves:
            raise ValueError("--etcd-ca, --etcd-cert, --etcd-key and --etcd-user are for a --state etcd://…")
        if (access.cert is None) != (access.key is None) or (access.cert is not None and access.ca is None):
            raise ValueError("--etcd-cert, --etcd-key and --etcd-ca: give all three of them, or the last one alone")
        if bool(access.user) != (access.password_file is not None):
            raise ValueError("--etcd-user and --etcd-password-file: give both of them")
        return self

    @model_validator
    def _names_a_file(self) -> Self:
        if self.state == MEMORY and (self.export_state or self.import_state):
            raise ValueError(
                "--state PATH (SLOTMESH_STATE), or etcd://…, is required with --export-state and --import-state"
            )
        if self.export_state and self.import_state:
            raise ValueError("--export-state and --import-state: give one of them")
        return self
