"""Declarative settings: a class whose annotations are its fields, validated when an object is created.

Purpose: the settings classes of `slotmesh.config` and of the services declare their fields with `Field`; values are
parsed by the type of their field, checked against its bounds, and validated by the class. The interface is a small part
of pydantic's: importing that library takes a tenth of a second of processor time in each process.
Invariants: an existing object is valid and frozen; all fields are validated before an error is raised. The order of
fields is that of the base classes, then of the class. Defaults are not validated. A class is inspected at its first
use, not at its definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import EnumType
from math import isfinite
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from slotmesh.names import is_utf8

_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldBounds:
    """The bounds of a value; None: no bound."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None
    min_length: int | None = None
    max_length: int | None = None

    @property
    def are_some(self) -> bool:
        """Whether a value may be too small or too large."""
        return any(each is not None for each in (self.ge, self.gt, self.le, self.lt))

    def checked(self, value: Any) -> Any:
        """The value. Raises ValueError."""
        # Written so that NaN is out of bounds.
        is_within = (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
            and (self.min_length is None or len(value) >= self.min_length)
        )
        if not is_within:
            raise ValueError
        if self.max_length is not None and len(value) > self.max_length:
            raise ValueError(f"at most {self.max_length} characters, got {len(value)}")
        return value


def read_value(kind: Any, value: Any) -> Any:
    """A value of a plain type. Raises ValueError."""
    if choices := get_args(kind):
        return _of(value in choices, value)
    if kind is bool:
        return _read_bool(value)
    if kind is int:
        return _read_int(value)
    if kind is float:
        return _read_float(value)
    if kind is Path:
        return Path(_of(isinstance(value, str | PathLike), value))
    if kind is str:
        return _of(isinstance(value, str), value)
    if kind is timedelta:
        return value if isinstance(value, timedelta) else timedelta(seconds=_read_seconds(value))
    if isinstance(kind, EnumType):
        return _made(kind, _of(isinstance(value, str), value))
    raise TypeError(f"settings have no fields of type {kind!r}")


def _of(is_sound: bool, value: Any) -> Any:
    if not is_sound:
        raise ValueError
    return value


def _read_bool(value: Any) -> bool:
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text not in _TRUE | _FALSE:
        raise ValueError
    return text in _TRUE


def _read_int(value: Any) -> int:
    if isinstance(value, str):
        whole, point, fraction = value.strip().partition(".")
        _of(not point or (fraction != "" and not fraction.strip("0")), value)
        return int(_made(int, whole))
    return int(_of(isinstance(value, int) or (isinstance(value, float) and value.is_integer()), value))


def _read_float(value: Any) -> float:
    if isinstance(value, str):
        return float(_made(float, value.strip()))
    return float(_of(isinstance(value, int | float), value))


def _read_seconds(value: Any) -> float:
    return float(_of(isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value), value))


def _made(kind: Any, text: str) -> Any:
    _of(text.isascii(), text)  # Python would accept the digits of all scripts
    try:
        return kind(text)
    except ValueError:
        raise ValueError from None  # Python's message is not for users


ModelT = TypeVar("ModelT", bound="SettingsModel")
CheckT = TypeVar("CheckT", bound=Callable[..., Any])

_REQUIRED: Final = object()
_IS_CHECK: Final = "slotmesh_checks_all"


@dataclass(slots=True, eq=False)
class SettingField:
    """One field of a class."""

    default: Any = _REQUIRED
    default_factory: Callable[[], Any] | None = None
    description: str = ""
    bounds: FieldBounds = field(default_factory=FieldBounds)
    plain: Any = str
    """The type without `| None` and annotations."""
    is_optional: bool = False
    """Whether None is a value of it."""
    metadata: tuple[Any, ...] = ()
    """The metadata of its annotation."""
    check: Callable[[Any], object] | None = None
    """Raises ValueError for an invalid value. It does not get None."""
    check_beside: Callable[[Any, Mapping[str, Any]], object] | None = None
    """The same; it also gets the valid values of the preceding fields."""

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED and self.default_factory is None

    def make_default(self) -> Any:
        return self.default if self.default_factory is None else self.default_factory()

    def typed(self, hint: Any) -> SettingField:
        """The field with the information of its annotation."""
        plain, metadata, is_optional = _taken_apart(hint)
        return replace(self, plain=plain, is_optional=is_optional, metadata=metadata)

    def read(self, value: Any, preceding: Mapping[str, Any]) -> Any:
        """Parses a given value. Raises ValueError, without a text if the form is invalid."""
        if value is None and self.is_optional:
            return None
        if isinstance(value, str | PathLike) and not is_utf8(text := str(value)):
            raise ValueError(f"must be text in UTF-8, got {text!a}")
        for each in self.metadata:
            if isinstance(each, ReadBefore):
                value = each.read(value)
        value = self.bounds.checked(read_value(self.plain, value))
        if self.check is not None:
            self.check(value)
        if self.check_beside is not None:
            self.check_beside(value, preceding)
        return value


@dataclass(frozen=True, slots=True)
class ReadBefore:
    """Marks a type whose values a function parses first. It raises ValueError, with or without a text."""

    read: Callable[[Any], Any]


def Field(  # noqa: N802 - named as in pydantic
    default: Any = _REQUIRED,
    *,
    default_factory: Callable[[], Any] | None = None,
    description: str = "",
    check: Callable[[Any], object] | None = None,
    check_beside: Callable[[Any, Mapping[str, Any]], object] | None = None,
    **bounds: Any,
) -> Any:
    """Declares a field: its default, its description, what checks its values, and the bounds of `FieldBounds`."""
    bounded = FieldBounds(**bounds)
    return SettingField(default, default_factory, description, bounded, check=check, check_beside=check_beside)


def model_validator(check: CheckT) -> CheckT:
    """Makes a method validate the whole object, once all fields are valid: it raises ValueError."""
    setattr(check, _IS_CHECK, True)
    return check


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """An error of one setting, or of several together."""

    name: str | None
    """None: of several settings together."""
    words: str
    """The message of a validator; empty if the value does not have the expected form."""
    value: Any = None
    is_missing: bool = False


class InvalidSettings(ValueError):
    """Values that are invalid for a class."""

    def __init__(self, *problems: SettingProblem) -> None:
        super().__init__("; ".join(_message(each) for each in problems))
        self.problems = problems


class _Fields:
    """The fields of a class by name, created at the first access."""

    def __get__(self, _settings: object, owner: type[SettingsModel]) -> Mapping[str, SettingField]:
        found = owner.__dict__.get("_slotmesh_fields")
        if found is None:
            found = _fields_of(owner)
            owner._slotmesh_fields = found
        return found


class SettingsModel:
    """Base of classes that declare settings."""

    model_fields: ClassVar[_Fields] = _Fields()
    _slotmesh_fields: ClassVar[Mapping[str, SettingField]]

    def __init__(self, **given: Any) -> None:
        """Raises InvalidSettings with every problem."""
        fields = type(self).model_fields
        problems = [SettingProblem(name, "is no setting", value) for name, value in given.items() if name not in fields]
        values: dict[str, Any] = {}
        for name, each in fields.items():
            if name not in given:
                if each.is_required:
                    problems.append(SettingProblem(name, "", is_missing=True))
                else:
                    values[name] = each.make_default()
                continue
            try:
                values[name] = each.read(given[name], values)
            except (ValueError, AssertionError) as error:
                problems.append(SettingProblem(name, str(error), given[name]))
        if problems:
            raise InvalidSettings(*problems)
        self.__dict__.update(values)
        self._check()

    def _check(self) -> None:
        for name in _checks_of(type(self)):
            try:
                getattr(self, name)()
            except (ValueError, AssertionError) as error:
                raise InvalidSettings(SettingProblem(None, str(error))) from None

    @classmethod
    def model_validate(cls, given: Mapping[str, Any]) -> Self:
        """An object of these values. Raises InvalidSettings."""
        return cls(**given)

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """A copy with other values, which are not validated."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, **update)
        return copied

    def model_dump(self) -> dict[str, Any]:
        """All values by name."""
        return {name: self.__dict__[name] for name in type(self).model_fields}

    def __setattr__(self, name: str, _value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self.model_dump() == other.model_dump() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *self.model_dump().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.model_dump().items())})"


def _fields_of(owner: type[SettingsModel]) -> dict[str, SettingField]:
    hints = get_type_hints(owner, include_extras=True)
    return {
        name: value.typed(hints[name])
        for base in reversed(owner.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, SettingField)
    }


def _checks_of(owner: type[SettingsModel]) -> Iterator[str]:
    """Names of the validators of the whole object, those of the bases first."""
    found = {
        name: None
        for base in reversed(owner.__mro__)
        for name, value in vars(base).items()
        if getattr(value, _IS_CHECK, False)
    }
    return iter(found)


def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The plain type of an annotation, its metadata, and whether it allows None."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        plain, more, is_optional = _taken_apart(inner)
        return plain, (*more, *metadata), is_optional
    if get_origin(hint) in {Union, UnionType}:
        (inner,) = (each for each in get_args(hint) if each is not type(None))
        plain, metadata_of_it, _ = _taken_apart(inner)
        return plain, metadata_of_it, True
    return hint, (), False


def is_choice(plain: Any) -> bool:
    """Whether a plain type is a choice of texts."""
    return get_origin(plain) is Literal


def _message(problem: SettingProblem) -> str:
    words = "is required" if problem.is_missing else problem.words or f"{problem.value!r} is not in the expected form"
    return words if problem.name is None else f"{problem.name}: {words}"
