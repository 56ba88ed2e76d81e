"""How payloads may be encoded: the names that travel as `content_type`."""

from __future__ import annotations

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.names import sendable_text
from slotmesh.streams.limits import MAX_MESSAGE_CHARS

OCTET_STREAM = "application/octet-stream"
"""The handler's one argument is the payload, the result is bytes. The empty string means the same on the wire."""

JSON = "application/json"
"""An array of positional arguments, or an object of named ones."""

MSGPACK = "application/msgpack"
"""As JSON, in less time and space, and with bytes as bytes."""

PROTOBUF = "application/x-protobuf"
"""One protobuf message in, one out."""

TENSORS = "application/x-tensors"
"""A msgpack map of tensors by name: arrays as in MSGPACK, and tensors of byte strings. Servers of the Open Inference
Protocol send it; the first axis of each tensor is the rows of a batch, and the result is such a map, too."""

CONTENT_TYPES = (OCTET_STREAM, JSON, MSGPACK, PROTOBUF, TENSORS)
"""All that are known."""


class DecodeError(ValueError):
    """Bytes that cannot be decoded. `failure` is the one that a caller of a handler gets.

    The message has the path (as `args[0].pixels[3]`) and what was expected; of the payload only the value's type.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Reason = Reason.BAD_ARGUMENTS,
        field: str = "payload",
        executed: Executed = Executed.NO,
    ) -> None:
        """`executed`: of the call whose arguments, or whose result, these are."""
        # A name in the payload, or what a class of the user's own has raised, may be of any length.
        message = sendable_text(message, MAX_MESSAGE_CHARS)
        super().__init__(message)
        self.failure = Failure(reason=reason, message=message, executed=executed, metadata={"field": field})
        """Why the call has no result."""

    @property
    def executed(self) -> Executed:
        """Whether the call was executed: of a result, it was."""
        return self.failure.executed


class EncodeError(TypeError):
    """A value that the content type cannot carry."""


def unknown_content_type(content_type: str) -> str:
    """The message for a content type that is not known."""
    return f"content_type: must be one of {', '.join(CONTENT_TYPES)}, got {content_type!r}"


def where(message: str, root: str) -> str:
    """A message of msgspec, path first: `args[0].pixels[3]: expected float, got str`.

    A hook's own path, inside the value that it was given, comes before the one that msgspec adds.
    """
    what, *paths = message.split(" - at `$")
    what = what.replace("`", "")
    path = "".join(inner.removesuffix("`") for inner in reversed(paths))
    if not root:
        path = path.removeprefix(".")
    place = f"{root}{path}"
    if not what[1:2].isupper():  # it begins with a word, and not with JSON
        what = what[:1].lower() + what[1:]
    return f"{place}: {what}" if place else what
