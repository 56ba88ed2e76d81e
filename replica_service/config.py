"""The settings of a replica process, and `HeldName`, which makes it one of a numbered set."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Self

from replica_service.core.lifecycle import FenceSettings
from slotmesh.config import Duration, ServerTargets
from slotmesh.config.declaring import Field, model_validator
from slotmesh.config.members import MemberId, MemberSettings
from slotmesh.config.reading import FlagOnly
from slotmesh.ids import new_id
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.devices import read_devices

MAX_NAMES: Final = 4_096
"""Replicas of one backend that share a directory, at most."""
ALIVE_EVERY_S: Final = 2.0
"""How often the holder of a name notes that it is alive."""


class HeldName:
    """A name of `BACKEND-0`, `BACKEND-1` and so on, which no other process on this machine has.

    Container engines give each new container another name, and a replica whose name never returns keeps its ordering
    keys for ever. So a process takes the name of a replica that has crashed, of several the one that lived last: by
    that the controller knows that the earlier process has ended, and moves its keys. Otherwise it takes the lowest free
    name.

    A name is held by a lock on an empty file in a directory that the processes share. The kernel releases the lock when
    the process ends, in any way, and no earlier; processes that a handler forks close the file, or those that outlive
    the replica would hold its name. The file's time of modification shows when its holder was alive, and
    is 0 after an end that was reported to the controller. The process owns the name while it runs; a thread of it
    writes the time.
    """

    def __init__(self, name: str, lock: int) -> None:
        self.name = name
        self._lock = lock
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._close)
        self._is_over = threading.Event()
        self._note(None)
        self._life = threading.Thread(target=self._live, name="held name", daemon=True)
        self._life.start()

    @classmethod
    def take(cls, directory: Path, backend: str) -> HeldName:
        """Takes the name of a replica that has crashed, or the lowest free one. Raises CannotStart."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _crashed_first(directory, [f"{backend}-{number}" for number in range(MAX_NAMES)]):
                lock = os.open(_lock_file(directory, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock)
                    continue
                except BaseException:
                    os.close(lock)
                    raise
                return cls(name, lock)
        except OSError as error:
            reason = error.strerror or error
            raise CannotStart(f"{directory}: {reason}: name a directory to write to with --replica-names") from error
        raise CannotStart(f"{directory}: all {MAX_NAMES} names of backend {backend} are in use")

    def has_ended(self) -> None:
        """The controller has read the last report: the name is like one that was never used."""
        self._is_over.set()
        self._life.join()
        self._note(0)

    def release(self) -> None:
        """Frees the name for another process."""
        self._is_over.set()
        self._life.join()
        self._close()

    def _close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _live(self) -> None:
        while not self._is_over.wait(ALIVE_EVERY_S):
            self._note(None)

    def _note(self, time_s: int | None) -> None:
        """None: now."""
        with suppress(OSError):  # the lock counts all the same
            os.utime(self._lock, None if time_s is None else (time_s, time_s))


def _lock_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.lock"


def _crashed_first(directory: Path, names: Sequence[str]) -> list[str]:
    """Names whose holders were alive without a known end, the latest first; then the others, in their order."""

    def alive_at(name: str) -> float:
        try:
            return _lock_file(directory, name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    return sorted(names, key=alive_at, reverse=True)


class ReplicaSettings(MemberSettings):
    """A replica: hosts one copy of a handler, executes and batches its calls."""

    port: int = Field(7072, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    metrics_port: int = Field(
        9466, ge=-1, le=65_535, description="Port of the Prometheus endpoint; 0: a free one, -1: none."
    )
    handler: str | None = Field(None, min_length=1, description="The class or function to run, MODULE:NAME.")
    code: Annotated[str | None, FlagOnly()] = Field(
        None,
        min_length=1,
        description="The code to run, set by the controller that starts the replica: the folder of a snapshot, or an "
        "installed distribution as dist:NAME==VERSION. Not given: the files on the module path.",
    )
    backend: str | None = Field(
        None, min_length=1, max_length=63, description="Backend that it belongs to; the handler's NAME where not given."
    )
    controller: ServerTargets | None = Field(
        None,
        description="Where the controller is: several HOST:PORT, or dns:///NAME:PORT; the replica follows the leader. "
        "Without it the replica belongs to no mesh: no router sends it calls.",
    )
    replica_id: MemberId | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="Identity, unique in the mesh; made from the backend's name where not given. @hostname is the "
        "machine's own name.",
    )
    replica_names: Path | None = Field(
        None,
        description="A directory that the replicas of one machine share, on a local disk, in place of --replica-id: "
        "the replica takes one of the names BACKEND-0, BACKEND-1 and so on there, and holds it by a lock until its "
        "process ends: that of a replica that has crashed, of several the one that lived last, or the lowest free one.",
    )
    graceful_timeout: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        description="Time to finish running calls after a stop request; the controller's configuration overrides it.",
    )
    orphan_timeout: Duration | None = Field(
        None,
        gt=timedelta(0),
        description="How long the replica continues while no controller can be reached; then it drains and exits. Not "
        "given: without limit, for replicas that a supervisor restarts.",
    )
    fence_after: Duration | None = Field(
        None,
        ge=timedelta(seconds=2),
        le=timedelta(hours=24),
        description="For replicas on other machines than their controller: how long the replica starts calls without "
        "an acknowledgement of the controller. Then it drains, and its process exits within --fence-grace in any case, "
        "so that the controller can move its ordering keys to other replicas. Not given: it continues, and its keys "
        "wait.",
    )
    fence_grace: Duration = Field(
        timedelta(seconds=5),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="With --fence-after: how long running calls may continue before the process exits.",
    )
    pod_uid: str | None = Field(
        None,
        max_length=64,
        description="The uid of the Kubernetes pod that the replica runs in (metadata.uid): by it, a controller with "
        "--watch-pods detects the replica's end.",
    )
    devices: str = Field(
        "",
        max_length=20_000,
        check=read_devices,
        description="Devices that the replica holds, as cuda=0,1 or cuda=0@0.5 for a share of one: for display, and "
        "for the controller, which compares them with the backend's `devices`. A controller that starts the replica "
        "sets it.",
    )
    resume_ttl: Duration = Field(
        timedelta(seconds=60),
        gt=timedelta(0),
        description="How long results of sessions are kept for clients that reconnect.",
    )
    keys_hook_timeout: Duration = Field(
        timedelta(seconds=10),
        gt=timedelta(0),
        le=timedelta(minutes=10),
        description="Limit for one call of the handler's on_keys_gained or on_keys_lost. Calls of these keys wait "
        "meanwhile; after the limit they continue without the hook.",
    )
    max_slots_per_caller: int | None = Field(
        None,
        ge=1,
        description="Slots that one caller, known by certificate or token, may have reserved here, with those of its "
        "direct streams. Not given: three quarters of max_ongoing.",
    )
    log_exception_text: bool = Field(
        False,
        description="Whether exceptions that calls raise are logged with their texts, which callers get in any case. "
        "They may quote what the call has sent.",
    )
    describe: Annotated[str | None, FlagOnly()] = Field(
        None,
        min_length=1,
        description="MODULE:NAME: print this handler's decorator settings and its methods' JSON Schemas, as JSON.",
    )

    @model_validator
    def _has_handler(self) -> Self:
        if self.handler is None and self.describe is None:
            raise ValueError("--handler MODULE:NAME (SLOTMESH_HANDLER) is required: the class or function to run")
        return self

    @model_validator
    def _has_one_name(self) -> Self:
        if self.replica_id is not None and self.replica_names is not None:
            raise ValueError("--replica-id and --replica-names: give one of them")
        return self

    @model_validator
    def _has_one_to_acknowledge(self) -> Self:
        if self.fence_after is not None and self.controller is None:
            raise ValueError(
                "--controller (SLOTMESH_CONTROLLER) is required with --fence-after: it acknowledges reports"
            )
        return self

    @property
    def held_devices(self) -> tuple[str, ...]:
        """The devices that it holds, each as `cuda=0`, or `cuda=0@0.5` for a share of one."""
        return tuple(map(str, read_devices(self.devices)))

    @property
    def is_announced(self) -> bool:
        return self.controller is not None

    @property
    def fence(self) -> FenceSettings | None:
        """How long the replica continues without an acknowledgement; None: without limit."""
        if self.fence_after is None:
            return None
        return FenceSettings(after_s=self.fence_after.total_seconds(), grace_s=self.fence_grace.total_seconds())

    @property
    def backend_name(self) -> str:
        """The backend that the replica belongs to."""
        return self.backend or (self.handler or "").rpartition(":")[2]

    @property
    def tls_names(self) -> tuple[str, ...]:
        return (f"replica-{self.backend_name}", "replica")

    def make_replica_id(self) -> str:
        """The identity that was given, or a new one."""
        return self.replica_id or f"{self.backend_name}-{new_id(3)}"
