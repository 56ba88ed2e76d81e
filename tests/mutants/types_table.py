"""Mutants of types: what handlers return and take, and what becomes of it on the way."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CODEC: Final = "slotmesh/codec"
CLI: Final = "slotmesh/cli"
HANDLERS: Final = "slotmesh/handlers"
OIP: Final = "slotmesh/oip"

_NUMBERS: Final = (
    mutant(
        "a number that is too large for FP32 becomes infinity",
        OIP,
        'if kind.code == "f":',
        "if False:",
        "tests/unit/oip",
    ),
    mutant(
        "a number that is too large for a scalar of numpy becomes infinity",
        CODEC,
        "numpy.isinf(made) and not math.isinf(value)",
        "False",
        "tests/unit/codec/test_array_values.py",
    ),
    mutant(
        "a list without elements is an array of floats, whatever is wanted",
        CODEC,
        "if not array.size:",
        "if False:",
        "tests/unit/codec/test_array_values.py",
    ),
    mutant(
        "a parameter that is null counts as one",
        OIP,
        "(parameters or {}).items() if value is not None",
        "(parameters or {}).items()",
        "tests/unit/oip",
    ),
)

_AWAITABLES: Final = (
    mutant(
        "an `async def` below a decorator is taken for a `def`",
        HANDLERS,
        "for layer in layers(function) if",
        "for layer in (function,) if",
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "an annotation does not say what a method returns",
        HANDLERS,
        "return _BY_ANNOTATION.get(get_origin(wanted) or wanted)",
        "return None",
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "a coroutine that a `def` returns without a reply is never run",
        "replica_service/shell",
        "if not run.options.no_reply or not isawaitable(value):",
        'if not isawaitable(value) or payload == b"":',
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "a decorator around a batch method is left out",
        HANDLERS,
        "bound.__wrapped__ is not whole",
        "False",
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "a hook that yields is accepted, and never run",
        HANDLERS,
        "if kind_of(function).yields:",
        "if False:",
        "tests/unit/replica/test_awaitables.py",
    ),
)

_MODELS: Final = (
    mutant(
        "what a model is written as is not what it is read from: aliases",
        CODEC,
        "if [written] in paths:",
        "if True:",
        "tests/unit/codec/test_models.py",
    ),
    mutant(
        "bytes of a model are other bytes in JSON",
        CODEC,
        'elif kind == "bytes" and not is_custom and not _BYTES_IN_JSON & config.keys():',
        "elif False:",
        "tests/unit/codec/test_models.py",
    ),
    mutant(
        "computed fields are written by a model that forbids them",
        CODEC,
        "others in _KEEPS_OTHERS",
        "False",
        "tests/unit/codec/test_models.py",
    ),
    mutant(
        "a secret is sent as asterisks",
        CODEC,
        "if self._is_masked:",
        "if False:",
        "tests/unit/codec/test_models.py",
    ),
    mutant(
        "a strict model does not read what it wrote in msgpack",
        CODEC,
        "if not self._is_strict:",
        "if True:",
        "tests/properties/test_models.py",
    ),
    mutant(
        "constraints of a parameter are not checked",
        CODEC,
        "if not constraints:",
        "if True:",
        "tests/unit/codec/test_models.py",
    ),
    mutant(
        "constraints in the fields of a dataclass are not checked",
        CODEC,
        "return found is not None",
        "return False",
        "tests/unit/codec/test_models.py",
    ),
)
_STANDARD: Final = (
    mutant(
        "a parameter that no payload can become is accepted at start",
        CODEC,
        "    deque(all_in(wanted, _parts_of_leaf), maxlen=0)  # which raises\n",
        "",
        "tests/unit/codec/test_type_matrix.py",
    ),
    mutant(
        "a class derived from a plain one says itself what it is sent as",
        CODEC,
        "(str, str.__str__)",
        "(str, str)",
        "tests/unit/codec/test_type_matrix.py",
    ),
    mutant(
        "digits of a long double are lost",
        CODEC,
        "(numpy.isnan(value) or float(value) == value)",
        "True",
        "tests/unit/codec/test_type_matrix.py",
    ),
    mutant(
        "what a standard type is made of is not checked",
        CODEC,
        "return (made.base,)",
        "return ()",
        "tests/unit/codec/test_type_matrix.py",
    ),
)
_RESULTS: Final = (
    mutant(
        "a result that can never be sent is accepted at start",
        CODEC,
        "elif not (batched and issubclass(kind, BaseException)) and not _may_be_sent(kind):",
        "elif False:",
        "tests/unit/replica/test_result_types.py",
    ),
    mutant(
        "an entry of a batch may not be an exception",
        CODEC,
        "batched and issubclass(kind, BaseException)",
        "False",
        "tests/unit/replica/test_result_types.py",
    ),
)
_DEFAULTS: Final = (
    mutant(
        "JSON leaves defaults of dataclasses on their class",
        CODEC,
        "return with_defaults(decode_any, wanted)",
        "return decode_any",
        "tests/unit/codec/test_dataclass_defaults.py",
    ),
    mutant(
        "a slot is overwritten by its default",
        CODEC,
        "and not inspect.isdatadescriptor(inspect.getattr_static(kind, each.name))",
        "and True",
        "tests/unit/codec/test_dataclass_defaults.py",
    ),
    mutant(
        "dataclasses in a deque lose their defaults",
        CODEC,
        "_completed(made.base)(convert(value, made.base))",
        "convert(value, made.base)",
        "tests/unit/codec/test_dataclass_defaults.py",
    ),
)
_TIMES: Final = (
    mutant(
        "a text of another struct of a union has the format of a time",
        HANDLERS,
        "sum(isinstance(each, _CLASSES) for each in union.types) == 1",
        "True",
        "tests/unit/handlers/test_time_formats.py",
    ),
)
_STUBS: Final = (
    mutant(
        "stubs take names of types that are hidden by members",
        CLI,
        "self._aliases.of(found[0]) if found[0] in self._members else found[0]",
        "found[0]",
        "tests/unit/cli/test_interface_source.py",
    ),
    mutant(
        "stubs let keyword-only parameters be given by position",
        CLI,
        'star = ["*"] if parts["keyword_only"] and',
        'star = ["*"] if not parts["keyword_only"] and',
        "tests/unit/cli/test_interface_source.py",
    ),
)

TYPES: Final = (*_STUBS, *_TIMES, *_DEFAULTS, *_RESULTS, *_NUMBERS, *_AWAITABLES, *_MODELS, *_STANDARD)
