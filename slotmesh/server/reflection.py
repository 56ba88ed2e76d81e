"""Server reflection, v1 and v1alpha: `grpcurl` and friends need no proto files.

Purpose: both versions have the same messages, so one servicer is mounted twice. Written here because the published one
speaks v1alpha only, finds no methods and fields, and leaves the JSON names of fields out.
Invariants: each question gets one answer, in order; a question that nothing answers to gets an error as its answer, and
the stream lives on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.rpc import code_pb2, error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2

from slotmesh.server import health
from slotmesh.transport.duplex import read_request

# What a server can say of its protos: which file declares a symbol or an extension, and what the file needs.
#
# Purpose: answers the questions of server reflection without asking a pool, whose look-ups know no methods and fields.
# Invariants: each file carries the JSON names of its fields, which generated Python code leaves out, and without which
# tools write keys in snake_case; a file comes with all that it imports.

File = descriptor_pb2.FileDescriptorProto


class Descriptors:
    """The files of a server's services, and of all that these import."""

    def __init__(self, files: Iterable[FileDescriptor]) -> None:
        self._files: dict[str, bytes] = {}
        self._imports: dict[str, tuple[str, ...]] = {}
        self._declaring: dict[str, str] = {}
        self._extensions: dict[str, dict[int, str]] = {}
        for file in files:
            self._add(file)

    def of_file(self, name: str) -> list[bytes] | None:
        """The serialised file of this name, and behind it all that it imports. None where there is none."""
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
        """The numbers under which a message is extended, ascending. None where there is no such message."""
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
        for extension in _extensions(described):
            extended = self._extensions.setdefault(extension.extendee.removeprefix("."), {})
            extended[extension.number] = file.name
        self._files[file.name] = described.SerializeToString()
        self._imports[file.name] = tuple(described.dependency)
        for each in file.dependencies:
            self._add(each)


def _messages(file: File) -> Iterator[tuple[descriptor_pb2.DescriptorProto, str]]:
    """Each message of a file, nested ones too, with what stands before its name."""
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
    """Enums and extensions of one scope. The values of an enum stand beside it, not below."""
    for enum in enums:
        yield f"{scope}{enum.name}"
        yield from (f"{scope}{value.name}" for value in enum.value)
    yield from (f"{scope}{extension.name}" for extension in extensions)


def _extensions(file: File) -> Iterator[descriptor_pb2.FieldDescriptorProto]:
    yield from file.extension
    for message, _ in _messages(file):
        yield from message.extension


def _name_in_json(fields: Iterable[descriptor_pb2.FieldDescriptorProto]) -> None:
    """Writes the JSON name of each field that has none, as protoc makes it."""
    for field in fields:
        if not field.json_name:
            first, *others = field.name.split("_")
            field.json_name = first + "".join(part[:1].upper() + part[1:] for part in others)


SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

ERROR_DETAILS = error_details_pb2.DESCRIPTOR
"""Told of always, so that clients can read the details of errors by reflection."""

_MAX_ECHO_BYTES: Final = 64 * 1024
"""Size over which a question is not repeated in its answer: an answer must fit a message, too."""
_MAX_SHOWN: Final = 200
"""Characters of a name in an error message."""

FoundT = TypeVar("FoundT")
_Question = reflection_pb2.ServerReflectionRequest
_Answer = reflection_pb2.ServerReflectionResponse


class MoreServices(Protocol):
    """Services that come and go."""

    @property
    def services(self) -> Sequence[str]:
        """Full names of those that there are now."""

    @property
    def descriptors(self) -> Sequence[Descriptors]:
        """What is told of them: what is looked for is taken from the first that has it."""


def register(services: Iterable[str], server: Any, more: MoreServices | None = None) -> None:
    """Adds both versions to a server, telling of `services`, of themselves, and of `more`."""
    reflection = Reflection([*services, *SERVICES], more)
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.answer_all, _Question.FromString, _Answer.SerializeToString
    )
    for service in SERVICES:
        server.add_registered_method_handlers(service, {"ServerReflectionInfo": handler})


class Reflection:
    """What one server tells of its services."""

    def __init__(self, services: Iterable[str], more: MoreServices | None = None) -> None:
        """`services` are full names; their protos have been imported."""
        self._services = sorted(services)
        self._more = more

    async def answer_all(self, _requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[_Answer]:
        """The rpc."""
        while (question := await read_request(context)) is not None:
            yield self.answer(question)

    def answer(self, question: _Question) -> _Answer:
        """The answer to one question."""
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
                _tell(answer, self._find(lambda it: it.of_file(name)), f"file {_shown(name)}")
            case "file_containing_symbol":
                name = question.file_containing_symbol
                _tell(answer, self._find(lambda it: it.of_symbol(name)), f"symbol {_shown(name)}")
            case "file_containing_extension":
                extension = question.file_containing_extension
                asked = (extension.containing_type, extension.extension_number)
                found = self._find(lambda it: it.of_extension(*asked))
                what = f"extension {extension.extension_number} of {_shown(extension.containing_type)}"
                _tell(answer, found, what)
            case "all_extension_numbers_of_type":
                name = question.all_extension_numbers_of_type
                numbers = self._find(lambda it: it.extension_numbers(name))
                if numbers is None:
                    _tell(answer, None, f"message {_shown(name)}")
                else:
                    answer.all_extension_numbers_response.base_type_name = name
                    answer.all_extension_numbers_response.extension_number.extend(numbers)
            case _:
                answer.error_response.error_code = code_pb2.INVALID_ARGUMENT
                answer.error_response.error_message = "a question that this server does not know, or none at all"
        return answer

    def _find(self, look: Callable[[Descriptors], FoundT | None]) -> FoundT | None:
        """What the server's own protos have, else those of services that come and go."""
        if (found := look(self._descriptors)) is not None or self._more is None:
            return found
        return next((found for each in self._more.descriptors if (found := look(each)) is not None), None)

    @cached_property
    def _descriptors(self) -> Descriptors:
        # Made for the first question: most servers are never asked.
        return Descriptors((*map(_file_of, self._services), ERROR_DETAILS))


def _tell(answer: _Answer, files: list[bytes] | None, asked_for: str) -> None:
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
    """The published package has the protocol as v1alpha only; v1 is the same under another name."""
    published = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(published)
    renamed = text_format.MessageToString(published).replace("v1alpha", "v1")
    return text_format.Parse(renamed, descriptor_pb2.FileDescriptorProto())


_V1 = descriptor_pool.DescriptorPool()
_V1.Add(_as_v1())
