"""gRPC services of users' own protos, from descriptor sets and `.proto` files: read, checked and joined.

Purpose: the one validation of an endpoint's services; routers read the kinds of rpcs here. Descriptors never enter the
default pool of the process: protos of different users may have the same names. The process that reads a document
compiles its `.proto` files: the mesh receives descriptors and needs no compiler.
Invariants: a valid set declares each named service, with all files that its messages need. Any other bytes raise
BadDescriptors.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError, Message

from slotmesh.calls.result_envelopes import MESH_SERVICES
from slotmesh.spec.model import MAX_DESCRIPTOR_BYTES, MAX_SERVICES, NO_SERVICES, GrpcServices, SpecViolation
from slotmesh.spec.rules import show

_FULL_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
MAX_NAME_CHARS: Final = 255

Files = descriptor_pb2.FileDescriptorSet


class BadDescriptors(ValueError):
    """Unusable descriptors; the message states the reason."""


class OwnRpc(NamedTuple):
    """One rpc of a user's service."""

    takes_several: bool
    """The client streams requests."""
    gives_several: bool
    """The handler yields responses."""


def read_services(descriptor_set: bytes, names: Collection[str] | None = None) -> GrpcServices:
    """The services with these full names; None: all services of the set except those of Google's own files.

    Raises:
        BadDescriptors: states the first problem.
    """
    pool, files = _pool_of(descriptor_set)
    declared = sorted(_declared(files))
    if names is None:
        names = declared
        if not names:
            raise BadDescriptors("declares no service")
    services = GrpcServices(names=tuple(sorted(set(names))), descriptor_set=descriptor_set)
    for problem in (*name_problems(services), *_missing(pool, services, declared)):
        raise BadDescriptors(problem)
    return services


def services_of_files(files: Iterable[FileDescriptor], names: Collection[str] | None = None) -> GrpcServices:
    """The same for files that the process has imported, as `greeter_pb2.DESCRIPTOR`, and all that they import."""
    needed: dict[str, FileDescriptor] = {}
    own = list(files)
    for file in own:
        _collect(file, needed)
    found = Files()
    for file in needed.values():
        file.CopyToProto(found.file.add())
    declared = [service.full_name for file in own for service in file.services_by_name.values()]
    return read_services(found.SerializeToString(), declared if names is None else names)


def services_violations(path: str, services: GrpcServices | None) -> Iterator[SpecViolation]:
    """All violations of an endpoint's services; `path` is the endpoint's path."""
    if services is None or services == NO_SERVICES:
        return
    path = f"{path}.grpc_services"
    problems = [*name_problems(services)]
    if not problems:
        try:
            pool, files = _pool_of(services.descriptor_set)
            problems = [*_missing(pool, services, sorted(_declared(files)))]
        except BadDescriptors as bad:
            problems = [f"its descriptor set {bad}"]
    for problem in problems:
        yield SpecViolation(path, problem)


def name_problems(services: GrpcServices) -> Iterator[str]:
    """The problems of the names and the sizes."""
    names, size = services.names, len(services.descriptor_set)
    if size > MAX_DESCRIPTOR_BYTES:
        yield f"its descriptor set has {size:,} bytes; at most {MAX_DESCRIPTOR_BYTES:,} are allowed"
    if len(names) > MAX_SERVICES:
        yield f"{len(names)} services; at most {MAX_SERVICES} are allowed"
        return
    if not names:
        yield "a descriptor set without a service: name one"
    if list(names) != sorted(set(names)):
        yield "services must be in the order of the alphabet, each once"
    for name in names:
        if len(name) > MAX_NAME_CHARS or not _FULL_NAME.fullmatch(name):
            yield f"{show(name)!r} is no full name of a service, as shop.v1.Orders"
        elif name.startswith(MESH_SERVICES):
            yield f"{show(name)}: services of `slotmesh` and `grpc` are the mesh's own"


def rpcs_of(services: GrpcServices) -> Mapping[str, Mapping[str, OwnRpc]]:
    """The rpcs of each service, by name. Raises BadDescriptors if the descriptors are invalid."""
    pool, _ = _pool_of(services.descriptor_set)
    found: dict[str, Mapping[str, OwnRpc]] = {}
    for name in services.names:
        try:
            methods = pool.FindServiceByName(name).methods
        except KeyError:
            raise BadDescriptors(f"declares no service {show(name)}") from None
        found[name] = {it.name: OwnRpc(it.client_streaming, it.server_streaming) for it in methods}
    return found


def files_of(services: GrpcServices) -> list[FileDescriptor]:
    """The files that declare the services. Raises BadDescriptors."""
    pool, _ = _pool_of(services.descriptor_set)
    try:
        return [pool.FindFileContainingSymbol(name) for name in services.names]
    except KeyError as error:
        raise BadDescriptors(f"lacks a service: {error}") from None


def _pool_of(raw: bytes) -> tuple[descriptor_pool.DescriptorPool, Files]:
    """A pool with the files of a set, whatever their order."""
    if len(raw) > MAX_DESCRIPTOR_BYTES:
        raise BadDescriptors(f"has {len(raw):,} bytes; at most {MAX_DESCRIPTOR_BYTES:,} are allowed")
    try:
        files = Files.FromString(raw)
    except DecodeError as error:
        raise BadDescriptors("is no google.protobuf.FileDescriptorSet") from error
    if not _is_text(files):
        raise BadDescriptors("has a name that is no UTF-8")
    pool = descriptor_pool.DescriptorPool()
    waiting = {file.name: file for file in files.file}
    known: set[str] = set()
    while waiting:
        ready = [name for name, file in waiting.items() if known.issuperset(file.dependency)]
        if not ready:
            name, file = next(iter(waiting.items()))
            lacks = next((it for it in file.dependency if it not in waiting and it not in known), name)
            raise BadDescriptors(f"lacks {show(lacks)}, which {show(name)} imports: write it with --include_imports")
        for name in ready:
            try:
                pool.AddSerializedFile(waiting.pop(name).SerializeToString())
            except (TypeError, KeyError, ValueError) as error:
                raise BadDescriptors(f"has a file that is not sound: {show(name)}") from error
            known.add(name)
    return pool, files


def _is_text(message: Message) -> bool:
    """Whether all strings are valid UTF-8. Protobuf checks only those of newer syntaxes."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.type == field.TYPE_STRING and not all(isinstance(each, str) for each in values):
            return False
        if field.message_type is not None and not all(map(_is_text, values)):
            return False
    return True


def _declared(files: Files) -> Iterator[str]:
    for file in files.file:
        if file.package == "google" or file.package.startswith("google."):
            continue
        for service in file.service:
            yield f"{file.package}.{service.name}" if file.package else service.name


def _missing(pool: descriptor_pool.DescriptorPool, services: GrpcServices, declared: Collection[str]) -> Iterator[str]:
    for name in services.names:
        try:
            pool.FindServiceByName(name)
        except KeyError:
            there = f"there are {', '.join(map(show, declared))}" if declared else "there is none"
            yield f"its descriptor set declares no service {show(name)} ({there})"


def _collect(file: FileDescriptor, needed: dict[str, FileDescriptor]) -> None:
    """The file behind all that it imports."""
    if file.name in needed:
        return
    for each in file.dependencies:
        _collect(each, needed)
    needed[file.name] = file


COMPILE_TIMEOUT_S: Final = 60.0
_MAX_SHOWN: Final = 2_000


class BadProtoFile(ValueError):
    """A file that cannot be read or compiled; the message states the file and the reason."""


def services_of_descriptor_file(file: Path, names: Collection[str] | None = None) -> GrpcServices:
    """The services of a descriptor set in a file. Raises BadProtoFile."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_DESCRIPTOR_BYTES + 1)
    except OSError as error:
        raise BadProtoFile(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        return read_services(raw, names)
    except BadDescriptors as bad:
        raise BadProtoFile(f"{file}: {bad}") from bad


def services_of_proto_files(
    files: Sequence[Path], base: Path = Path(), names: Collection[str] | None = None
) -> GrpcServices:
    """The services of `.proto` files; imports are found in `base` or beside the files. Raises BadProtoFile."""
    shown = ", ".join(map(str, files))
    for file in files:
        if not file.is_file():
            raise BadProtoFile(f"{file}: there is no such file")
    if find_spec("grpc_tools") is None:
        raise BadProtoFile(
            f"{shown}: to compile .proto files install grpcio-tools (`pip install grpcio-tools`); or give a descriptor"
            " set: protoc --include_imports --descriptor_set_out=service.binpb"
        )
    own = [file.resolve() for file in files]
    places = dict.fromkeys([base.resolve(), *(file.parent for file in own)])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "services.binpb"
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{place}" for place in places), "--include_imports"]
        command += [f"--descriptor_set_out={out}", *map(str, own)]
        try:
            done = subprocess.run(  # noqa: S603 - the compiler of this interpreter, without a shell
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BadProtoFile(f"{shown}: protoc takes longer than {COMPILE_TIMEOUT_S:g} s") from error
        if done.returncode:
            raise BadProtoFile(f"{shown}: protoc: {done.stderr.strip()[:_MAX_SHOWN]}")
        raw = out.read_bytes()
    try:
        return read_services(raw, _own_services(raw, own, base.resolve()) if names is None else names)
    except BadDescriptors as bad:
        raise BadProtoFile(f"{shown}: {bad}") from bad


def services_of_paths(files: Sequence[Path]) -> GrpcServices:
    """The services of `.proto` files, or of one descriptor set. Raises BadProtoFile."""
    sets = [it for it in files if it.suffix != ".proto"]
    if not sets:
        return services_of_proto_files(files)
    if len(files) == 1:
        return services_of_descriptor_file(sets[0])
    raise BadProtoFile("takes .proto files, or one descriptor set alone")


def _own_services(raw: bytes, own: Sequence[Path], base: Path) -> list[str]:
    """The services that the files declare, without those of imports. Raises BadDescriptors."""
    called = {file.relative_to(base).as_posix() if file.is_relative_to(base) else file.name for file in own}
    files = (it for it in descriptor_pb2.FileDescriptorSet.FromString(raw).file if it.name in called)
    names = [f"{it.package}.{each.name}" if it.package else each.name for it in files for each in it.service]
    if not names:
        raise BadDescriptors("declares no service")
    return names
