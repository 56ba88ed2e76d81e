"""How payloads may be encoded: the names that travel as `content_type`."""

from __future__ import annotations

OCTET_STREAM = "application/octet-stream"
"""The handler's one argument is the payload, the result is bytes. The empty string means the same on the wire."""

JSON = "application/json"
"""An array of positional arguments, or an object of named ones."""

MSGPACK = "application/msgpack"
"""As JSON, in less time and space, and with bytes as bytes."""

PROTOBUF = "application/x-protobuf"
"""One protobuf message in, one out."""

CONTENT_TYPES = (OCTET_STREAM, JSON, MSGPACK, PROTOBUF)
"""All that are known."""
