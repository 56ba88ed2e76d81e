"""`slotmesh run --reload`: replaces replicas whose module has changed; applies the mesh's file when it changes.

Invariants: an invalid change is reported, and the running mesh stays as it is: a module is described, a file is read as
a whole and protos are compiled before any replica is replaced. The command line never imports users' code: a separate
process describes a handler, and no module is imported to find its file.
Owner: `LocalMesh`, on one event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from slotmesh.cli.console import FAILED, WRONG_INPUT, CommandFailed
from slotmesh.cli.controller_view import ENDED
from slotmesh.cli.local.child import NOT_STARTED, environment, how, import_path
from slotmesh.cli.local.order import handlers_here
from slotmesh.cli.operator import Operator
from slotmesh.cli.view.changes import subjects_of
from slotmesh.cli.waiting import backend_of
from slotmesh.errors import ReplicaNotFound, SlotmeshError
from slotmesh.runtime.parent import ParentPipe
from slotmesh.spec.descriptor_sets import BadProtoFile, services_of_paths
from slotmesh.spec.document import load_mesh
from slotmesh.spec.model import Backend, InvalidSpec, Mesh, SpecViolation
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1.operations_pb2 import Operation

NOT_RELOADED: Final = "replicas of before go on"


async def check_handler(handler: str, parent: ParentPipe, otherwise: str = NOT_STARTED) -> None:
    """Raises CommandFailed, with the traceback, for a handler that cannot be imported or described: wrong input.

    `otherwise`: what is then the case.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "slotmesh.cli.local.parent_watch",
        str(parent.fd),
        "replica_service",
        f"--describe={handler}",
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=parent.pass_fds,
        process_group=0,
        env=environment(),
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        output = (err or out).decode(errors="replace").rstrip()
        # Status 1: the process has printed the reason.
        how_it_ended = f": {how(process.returncode)}" if process.returncode != 1 else ""
        lines = [*filter(None, [output]), f"{handler} cannot be used{how_it_ended}; {otherwise}"]
        raise CommandFailed("\n".join(lines), WRONG_INPUT if process.returncode > 0 else FAILED)


_Stamp = tuple[int, int]
"""Time of the last change in nanoseconds, and size in bytes."""


class FileChanges:
    """Detects changes of files by time and size.

    Reports each change once. A file that is missing for a while, as when an editor replaces it, has not changed until
    it exists again.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._seen = {path: _stamp(path) for path in paths}

    def watch(self, paths: Iterable[Path]) -> frozenset[Path]:
        """Looks at these from now on, and no others. Returns those that it did not look at before."""
        before = self._seen
        self._seen = {path: before[path] if path in before else _stamp(path) for path in paths}
        return frozenset(self._seen.keys() - before.keys())

    def take(self) -> frozenset[Path]:
        """The files that have changed since the last time."""
        now = {path: _stamp(path) for path in self._seen}
        changed = {path: stamp for path, stamp in now.items() if stamp is not None and stamp != self._seen[path]}
        self._seen.update(changed)
        return frozenset(changed)


def module_file(handler: str, folders: Iterable[str]) -> Path | None:
    """The source file of the module of `MODULE:NAME`, in the first of these folders that has it."""
    parts = handler.partition(":")[0].split(".")
    for folder in folders:
        base = Path(folder or os.curdir, *parts)
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                return path.resolve()
    return None


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


POLL_S: Final = 0.25
"""The interval between two looks at the files."""


class Reloader:
    """Watches the files of a mesh from its making on."""

    def __init__(
        self, mesh: Mesh, file: Path | None, protos: Sequence[Path], parent: ParentPipe, tell: Callable[[str], object]
    ) -> None:
        """`protos`: of the services of the endpoint, where there is no file."""
        self._mesh = mesh
        self._file = file
        self._protos = protos
        self._generated = [it for proto in protos for it in _generated_of(proto)]
        self._parent = parent
        self._tell = tell
        self._wanted = mesh
        """The content of the file when it was last read."""
        self._is_behind = False
        """The file has changed, and could not be applied yet."""
        self._rolling: dict[str, str] = {}
        """Operations that are looked at until they end: the newest rollouts, by backend."""
        self._changes = FileChanges(self._watched(mesh))

    async def follow(self, operator: Operator) -> None:
        """Never returns."""
        for backend in self._mesh.backends:
            if _source_of(backend) is None:
                self._tell(f"{backend.name}: no source file of {backend.handler} is found; its changes are not seen")
        while True:
            await asyncio.sleep(POLL_S)
            changed = self._changes.take()
            if self._is_behind:
                changed |= self._changes.watch(self._watched(self._wanted))
            try:
                if changed:
                    await self._reload(operator, changed)
                elif self._rolling:
                    self._tell_ends(await operator.operations([*self._rolling.values()]))
            except (CommandFailed, InvalidSpec, SlotmeshError) as error:
                self._tell(f"not reloaded, what runs goes on: {error}" if changed else str(error))
                self._rolling.clear()

    async def _apply(self, operator: Operator, mesh: Mesh) -> pb.ApplyMeshResponse:
        """Applies what the files are now, and looks at the rollouts that this begins until they end."""
        applied = await operator.apply_file(unnamed(mesh), force=True)
        self._rolling |= {name: f"rollout/{name}@{applied.revision}" for name in applied.rolling}
        return applied

    def _tell_ends(self, rollouts: Iterable[Operation]) -> None:
        """A line for each rollout that has ended, or does not get on."""
        for each in rollouts:
            if not each.done:
                continue
            name = backend_of(each)
            if each.failure:
                self._tell(f"{name}: the change failed: {each.failure}; look at it: slotmesh logs {name}")
            else:
                self._tell(f"{name}: all replicas are replaced")
            del self._rolling[name]

    async def _reload(self, operator: Operator, changed: frozenset[Path]) -> None:
        if self._file is not None and (self._file in changed or self._is_behind):
            self._is_behind = True
            await self._apply_again(operator, self._file)
            self._is_behind = False
        if not changed.isdisjoint(self._protos):
            await self._compile_again(operator)
        is_of_protos = not changed.isdisjoint((*self._protos, *self._generated))
        backends = [it for it in self._mesh.backends if is_of_protos or _source_of(it) in changed]
        if not backends:
            return
        for handler in handlers_here(backends):
            await check_handler(handler, self._parent, NOT_RELOADED)
        names = {it.name for it in backends}
        what = "a proto, or what is generated of it," if is_of_protos else "the module"
        self._tell(f"{', '.join(sorted(names))}: {what} has changed, its replicas are replaced")
        applied = await self._apply(operator, Mesh(backends=tuple(backends)))
        # Code that no snapshot has, as that of an ignored file, is no other version: no rollout brings it.
        as_before = names.difference(applied.rolling)
        for replica in (await operator.members()).replicas:
            if replica.backend in as_before and replica.state not in ENDED:
                with suppress(ReplicaNotFound):  # it has ended meanwhile
                    await operator.drain(replica.replica_id)

    async def _compile_again(self, operator: Operator) -> None:
        """Has routers serve what the protos say now."""
        try:
            services = await asyncio.to_thread(services_of_paths, self._protos)
        except BadProtoFile as bad:
            raise CommandFailed(str(bad)) from None
        endpoints = tuple(replace(it, grpc_services=services) for it in self._mesh.endpoints)
        mesh = replace(self._mesh, endpoints=endpoints)
        await self._apply(operator, mesh)
        self._mesh = mesh

    async def _apply_again(self, operator: Operator, file: Path) -> None:
        """Applies the file; deletes what it no longer contains, endpoints first."""
        self._wanted = mesh = load_runnable(file)
        # From now on: a module that cannot be imported yet may be mended, or come.
        self._changes.watch(self._watched(mesh))
        for handler in handlers_here(mesh.backends):
            await check_handler(
                handler, self._parent, NOT_RELOADED
            )  # known ones, too: what their files are now is applied
        applied = await self._apply(operator, mesh)
        gone = set(subjects_of(self._mesh)) - set(subjects_of(mesh))
        for subject in sorted(gone, reverse=True):
            try:
                await operator.delete(subject)
            except SlotmeshError as error:
                self._tell(f"{subject} is not in {file} any more, but stays: {error}")
        self._mesh = mesh
        self._tell(f"{file}: applied as revision {applied.revision}")

    def _watched(self, mesh: Mesh) -> Iterator[Path]:
        if self._file is not None:
            yield self._file
        yield from self._protos
        yield from self._generated
        for backend in (*mesh.backends, *self._mesh.backends):
            if (path := _source_of(backend)) is not None:
                yield path


def unnamed(mesh: Mesh) -> Mesh:
    """Without names of versions, under which the code would stay as it was when they were applied first."""
    return replace(mesh, backends=tuple(replace(it, version="") for it in mesh.backends))


def load_runnable(file: Path) -> Mesh:
    """The mesh of a file, for `slotmesh run`, which starts replicas. Raises InvalidSpec with every violation."""
    return load_mesh(file, _run_violations)


def _run_violations(mesh: Mesh) -> Iterator[SpecViolation]:
    """What is wrong of a mesh that has nothing but what its file has."""
    text = "`slotmesh run` starts replicas, and needs what they run: give it as MODULE:NAME"
    yield from (SpecViolation(f"backends.{it.name}.handler", text) for it in mesh.backends if not it.handler)
    if not mesh.backends:
        yield SpecViolation("backends", "there is none to run: give one, as {v1: {handler: MODULE:NAME}}")
    backends, endpoints = {it.name for it in mesh.backends}, {it.name for it in mesh.endpoints}
    for endpoint in mesh.endpoints:
        traffic = endpoint.traffic
        for kind, named in (("traffic", traffic.weights), ("shadows", traffic.shadows)) if traffic is not None else ():
            for name in named:
                if name not in backends:
                    yield SpecViolation(
                        f"endpoints.{endpoint.name}.{kind}.{name}", "the file has no backend of that name"
                    )
    for route in mesh.routes:
        if route.endpoint and route.endpoint not in endpoints:
            yield SpecViolation(f"routes.{route.path}.endpoint", f"the file has no endpoint {route.endpoint!r}")


def _generated_of(proto: Path) -> Iterator[Path]:
    """The modules that protoc writes beside a proto; none need be there."""
    if proto.suffix == ".proto":
        yield proto.with_name(f"{proto.stem}_pb2.py")
        yield proto.with_name(f"{proto.stem}_pb2_grpc.py")


def _source_of(backend: Backend) -> Path | None:
    """As replicas find it: the working directory goes first."""
    return module_file(backend.handler, [*([str(Path(backend.cwd).absolute())] if backend.cwd else ()), *import_path()])
