"""Content types: bytes, JSON, msgpack, protobuf, tensors. Values to payloads, payloads to arguments, and back."""

from __future__ import annotations

from slotmesh.codec.arguments import ArgumentsDecoder, RpcDecoder, encode_arguments, encode_arguments_of_each
from slotmesh.codec.arrays import is_rows
from slotmesh.codec.columns import Columns, ColumnsDecoder, Flaw
from slotmesh.codec.content_types import (
    CONTENT_TYPES,
    JSON,
    MSGPACK,
    OCTET_STREAM,
    PROTOBUF,
    TENSORS,
    DecodeError,
    EncodeError,
)
from slotmesh.codec.rpc import RpcReply, encode_reply, parser_of, serializer_of
from slotmesh.codec.structured import Arguments
from slotmesh.codec.types.signature import Signature
from slotmesh.codec.values import (
    EncodedList,
    carries_lists,
    decode,
    decoder,
    decoder_of_each,
    encode,
    encode_each,
    encoder,
)

__all__ = [
    "CONTENT_TYPES",
    "JSON",
    "MSGPACK",
    "OCTET_STREAM",
    "PROTOBUF",
    "TENSORS",
    "Arguments",
    "ArgumentsDecoder",
    "Columns",
    "ColumnsDecoder",
    "DecodeError",
    "EncodeError",
    "EncodedList",
    "Flaw",
    "RpcDecoder",
    "RpcReply",
    "Signature",
    "carries_lists",
    "decode",
    "decoder",
    "decoder_of_each",
    "encode",
    "encode_arguments",
    "encode_arguments_of_each",
    "encode_each",
    "encode_reply",
    "encoder",
    "is_rows",
    "parser_of",
    "serializer_of",
]
