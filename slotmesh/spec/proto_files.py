"""`.proto` files and descriptor sets named by a document or a command: from files to an endpoint's services.

Purpose: the process that reads the document compiles its `.proto` files; the mesh receives descriptors and needs no
compiler.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2

from slotmesh.spec.descriptor_sets import BadDescriptors, read_services
from slotmesh.spec.model import MAX_DESCRIPTOR_BYTES, GrpcServices

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


def services_of_files(files: Sequence[Path]) -> GrpcServices:
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
