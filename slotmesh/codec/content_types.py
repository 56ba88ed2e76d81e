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

TENSORS = "application/x-tensors"
"""A msgpack map of tensors by name: arrays as in MSGPACK, and tensors of byte strings. Servers of the Open Inference
Protocol send it; the first axis of each tensor is the rows of a batch, and the result is such a map, too."""

CONTENT_TYPES = (OCTET_STREAM, JSON, MSGPACK, PROTOBUF, TENSORS)
"""All that are known."""
