"""Server reflection, v1 and v1alpha: `grpcurl` and friends need no proto files.

Purpose: both versions have the same messages, so one servicer is mounted twice. Written here because the published one
speaks v1alpha only, finds no methods and fields, and leaves the JSON names of fields out.
Invariants: each question gets one answer, in order; a question that nothing answers to gets an error as its answer, and
the stream lives on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.rpc import code_pb2, error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2

from slotmesh.runtime import health
from slotmesh.runtime.descriptors import Descriptors
from slotmesh.runtime.duplex import read_request

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
