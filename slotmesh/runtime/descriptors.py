"""What a server can say of its protos: which file declares a symbol or an extension, and what the file needs.

Purpose: answers the questions of server reflection without asking a pool, whose look-ups know no methods and fields.
Invariants: each file carries the JSON names of its fields, which generated Python code leaves out, and without which
tools write keys in snake_case; a file comes with all that it imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

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
