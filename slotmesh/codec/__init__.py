"""Content types: bytes, JSON, msgpack, protobuf. Values to payloads, payloads to checked arguments, and back."""

from __future__ import annotations

from slotmesh.codec.arguments import ArgumentsDecoder, encode_arguments, encode_arguments_of_each
from slotmesh.codec.content_types import CONTENT_TYPES, JSON, MSGPACK, OCTET_STREAM, PROTOBUF
from slotmesh.codec.errors import DecodeError, EncodeError
from slotmesh.codec.lists import EncodedList, carries_lists
from slotmesh.codec.structured import Arguments
from slotmesh.codec.values import decode, decoder, decoder_of_each, encode, encoder

__all__ = [
    "CONTENT_TYPES",
    "JSON",
    "MSGPACK",
    "OCTET_STREAM",
    "PROTOBUF",
    "Arguments",
    "ArgumentsDecoder",
    "DecodeError",
    "EncodeError",
    "EncodedList",
    "carries_lists",
    "decode",
    "decoder",
    "decoder_of_each",
    "encode",
    "encode_arguments",
    "encode_arguments_of_each",
    "encoder",
]
