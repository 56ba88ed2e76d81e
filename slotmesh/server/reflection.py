"""Server reflection, v1 and v1alpha: `grpcurl` and similar tools need no proto files.

Purpose: both versions have the same messages, so that one servicer is registered twice. The published servicer supports
only v1alpha, does not find methods and fields, and omits the JSON names of fields. Descriptor pools are not used, as
their look-ups do not find methods and fields either.
Invariants: each request gets one response, in order; an unknown name gets an error response, and the stream continues.
Each file has the JSON names of its fields, which generated Python code lacks, and without which tools write keys in
snake_case, and the comments of slotmesh's own protos, which `tools/generate_protos.py` writes; a file is returned with
all its imports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.rpc import code_pb2, error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2

from slotmesh.server import health
from slotmesh.transport.duplex import read_request

File = descriptor_pb2.FileDescriptorProto
_PACKAGES: Final = Path(__file__).parent.parent.parent
"""The folder of the package `slotmesh`. Comments of a proto are at its path in there."""


class Descriptors:
    """The files of a server's services with their imports, indexed by symbol and extension."""

    def __init__(self, files: Iterable[FileDescriptor], *, ours: bool = False) -> None:
        """`ours`: the files are those of this server; comments of slotmesh's own protos are added."""
        self._ours = ours
        self._files: dict[str, bytes] = {}
        self._imports: dict[str, tuple[str, ...]] = {}
        self._declaring: dict[str, str] = {}
        self._extensions: dict[str, dict[int, str]] = {}
        for file in files:
            self._add(file)

    def of_file(self, name: str) -> list[bytes] | None:
        """The serialised file of this name, followed by all its imports. None if there is none."""
        if name not in self._files:
            return None
        needed = dict.fromkeys([name])
        waiting = [name]
        while waiting:
            for each in self._imports[waiting.pop()]:
                if each not in needed:
                    needed[each] = None
                    waiting.append(each)
        return [self._files[each] for each in needed]

    def of_symbol(self, symbol: str) -> list[bytes] | None:
        """The file that declares a message, field, oneof, enum, enum value, service, method or extension."""
        return self.of_file(self._declaring.get(symbol, ""))

    def of_extension(self, message: str, number: int) -> list[bytes] | None:
        """The file that declares the extension of a message under a number."""
        return self.of_file(self._extensions.get(message, {}).get(number, ""))

    def extension_numbers(self, message: str) -> list[int] | None:
        """The numbers of a message's extensions, ascending. None if there is no such message."""
        found = self._extensions.get(message)
        return None if found is None else sorted(found)

    def _add(self, file: FileDescriptor) -> None:
        if file.name in self._files:
            return
        described = File()
        file.CopyToProto(described)
        for message, scope in _messages(described):
            self._extensions.setdefault(f"{scope}{message.name}", {})
            _name_in_json((*message.field, *message.extension))
        _name_in_json(described.extension)
        for symbol in _symbols(described):
            self._declaring[symbol] = file.name
        if self._ours and (comments := (_PACKAGES / file.name).with_suffix(".comments")).is_file():
            described.source_code_info.MergeFromString(comments.read_bytes())
        for extension in _extensions(described):
            extended = self._extensions.setdefault(extension.extendee.removeprefix("."), {})
            extended[extension.number] = file.name
        self._files[file.name] = described.SerializeToString()
        self._imports[file.name] = tuple(described.dependency)
        for each in file.dependencies:
            self._add(each)


def _messages(file: File) -> Iterator[tuple[descriptor_pb2.DescriptorProto, str]]:
    """Each message of a file, also nested ones, with the prefix of its name."""
    waiting: list[tuple[descriptor_pb2.DescriptorProto, str]] = []
    waiting += [(message, f"{file.package}." if file.package else "") for message in file.message_type]
    while waiting:
        message, scope = waiting.pop()
        yield message, scope
        waiting += [(nested, f"{scope}{message.name}.") for nested in message.nested_type]


def _symbols(file: File) -> Iterator[str]:
    scope = f"{file.package}." if file.package else ""
    yield from _declared(scope, file.enum_type, file.extension)
    for service in file.service:
        yield f"{scope}{service.name}"
        yield from (f"{scope}{service.name}.{method.name}" for method in service.method)
    for message, outer in _messages(file):
        inner = f"{outer}{message.name}."
        yield inner.removesuffix(".")
        yield from (f"{inner}{field.name}" for field in message.field)
        yield from (f"{inner}{oneof.name}" for oneof in message.oneof_decl)
        yield from _declared(inner, message.enum_type, message.extension)


def _declared(
    scope: str,
    enums: Iterable[descriptor_pb2.EnumDescriptorProto],
    extensions: Iterable[descriptor_pb2.FieldDescriptorProto],
) -> Iterator[str]:
    """Enums and extensions of one scope. The values of an enum belong to its parent scope."""
    for enum in enums:
        yield f"{scope}{enum.name}"
        yield from (f"{scope}{value.name}" for value in enum.value)
    yield from (f"{scope}{extension.name}" for extension in extensions)


def _extensions(file: File) -> Iterator[descriptor_pb2.FieldDescriptorProto]:
    yield from file.extension
    for message, _ in _messages(file):
        yield from message.extension


def _name_in_json(fields: Iterable[descriptor_pb2.FieldDescriptorProto]) -> None:
    """Sets the JSON name of each field without one, as protoc does."""
    for field in fields:
        if not field.json_name:
            first, *others = field.name.split("_")
            field.json_name = first + "".join(part[:1].upper() + part[1:] for part in others)


SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

ERROR_DETAILS = error_details_pb2.DESCRIPTOR
"""Always included, so that clients can read error details by reflection."""

_MAX_ECHO_BYTES: Final = 64 * 1024
"""Larger requests are not echoed in the response, which is limited by the message size as well."""
_MAX_SHOWN: Final = 200
"""The length limit of a name in an error message."""

FoundT = TypeVar("FoundT")
_Question = reflection_pb2.ServerReflectionRequest
_Answer = reflection_pb2.ServerReflectionResponse


class MoreServices(Protocol):
    """The source of services that appear and disappear."""

    @property
    def services(self) -> Sequence[str]:
        """Full names of the present services."""

    @property
    def descriptors(self) -> Sequence[Descriptors]:
        """Their descriptors, searched in order."""


def register(services: Iterable[str], server: Any, more: MoreServices | None = None) -> None:
    """Registers both versions, with `services`, reflection itself, and `more`."""
    reflection = Reflection([*services, *SERVICES], more)
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.answer_all, _Question.FromString, _Answer.SerializeToString
    )
    for service in SERVICES:
        server.add_registered_method_handlers(service, {"ServerReflectionInfo": handler})


class Reflection:
    """Reflection of one server."""

    def __init__(self, services: Iterable[str], more: MoreServices | None = None) -> None:
        """`services`: full names, whose protos are imported."""
        self._services = sorted(services)
        self._more = more

    async def answer_all(self, _requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[_Answer]:
        """The rpc."""
        while (question := await read_request(context)) is not None:
            yield self.answer(question)

    def answer(self, question: _Question) -> _Answer:
        """The response to one request."""
        answer = _Answer()
        if question.ByteSize() <= _MAX_ECHO_BYTES:
            answer.valid_host = question.host
            answer.original_request.CopyFrom(question)
        match question.WhichOneof("message_request"):
            case "list_services":
                more = () if self._more is None else self._more.services
                for name in sorted({*self._services, *more}):
                    answer.list_services_response.service.add(name=name)
            case "file_by_filename":
                name = question.file_by_filename
                _fill(answer, self._find(lambda it: it.of_file(name)), f"file {_shown(name)}")
            case "file_containing_symbol":
                name = question.file_containing_symbol
                _fill(answer, self._find(lambda it: it.of_symbol(name)), f"symbol {_shown(name)}")
            case "file_containing_extension":
                extension = question.file_containing_extension
                asked = (extension.containing_type, extension.extension_number)
                found = self._find(lambda it: it.of_extension(*asked))
                what = f"extension {extension.extension_number} of {_shown(extension.containing_type)}"
                _fill(answer, found, what)
            case "all_extension_numbers_of_type":
                name = question.all_extension_numbers_of_type
                numbers = self._find(lambda it: it.extension_numbers(name))
                if numbers is None:
                    _fill(answer, None, f"message {_shown(name)}")
                else:
                    answer.all_extension_numbers_response.base_type_name = name
                    answer.all_extension_numbers_response.extension_number.extend(numbers)
            case _:
                answer.error_response.error_code = code_pb2.INVALID_ARGUMENT
                answer.error_response.error_message = "unknown or empty request"
        return answer

    def _find(self, look: Callable[[Descriptors], FoundT | None]) -> FoundT | None:
        """Looks in the server's own protos first, then in those of `more`."""
        if (found := look(self._descriptors)) is not None or self._more is None:
            return found
        return next((found for each in self._more.descriptors if (found := look(each)) is not None), None)

    @cached_property
    def _descriptors(self) -> Descriptors:
        # Created for the first request, as most servers never get one.
        return Descriptors((*map(_file_of, self._services), ERROR_DETAILS), ours=True)


def _fill(answer: _Answer, files: list[bytes] | None, asked_for: str) -> None:
    if files is None:
        answer.error_response.error_code = code_pb2.NOT_FOUND
        answer.error_response.error_message = f"no {asked_for} here"
    else:
        answer.file_descriptor_response.file_descriptor_proto.extend(files)


def _shown(name: str) -> str:
    return repr(name[:_MAX_SHOWN])


def _file_of(service: str) -> FileDescriptor:
    for pool in (_V1, health.POOL, descriptor_pool.Default()):
        try:
            return pool.FindFileContainingSymbol(service)
        except KeyError:
            continue
    raise RuntimeError(f"the protos of {service} have not been imported")


def _as_v1() -> descriptor_pb2.FileDescriptorProto:
    """The protocol as v1. The published package has only v1alpha, with the same messages."""
    published = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(published)
    renamed = text_format.MessageToString(published).replace("v1alpha", "v1")
    return text_format.Parse(renamed, descriptor_pb2.FileDescriptorProto())


_V1 = descriptor_pool.DescriptorPool()
_V1.Add(_as_v1())
