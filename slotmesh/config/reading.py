"""Reads settings from all sources: defaults < file < environment < flags. Also makes the help.

Invariants: every source is read before any error is raised; each error has its source. Help texts and messages follow
from the declarations of the fields only.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, get_args

from slotmesh.config.declaring import InvalidSettings, SettingField, SettingProblem, SettingsModel, is_choice
from slotmesh.names import did_you_mean


@dataclass(frozen=True, slots=True)
class FieldKind:
    """How a setting is written: the expected form, its placeholder in the help, its values as text, examples."""

    expects: str
    placeholder: str
    write: Callable[[Any], str] = str
    such_as: str = ""


class FlagOnly:
    """Marks a setting that only its flag can set: an inherited descriptor is not valid in grandchildren."""


_KINDS = {
    bool: FieldKind("true or false", "BOOL"),
    int: FieldKind("a whole number", "N"),
    float: FieldKind("a number", "NUMBER"),
    Path: FieldKind("a path", "PATH"),
}


def kind_of(field: SettingField) -> FieldKind:
    """The kind in the field's annotation, or derived from its type."""
    for each in field.metadata:
        if isinstance(each, FieldKind):
            return each
    if is_choice(field.plain):
        choices = [str(each) for each in get_args(field.plain)]
        return FieldKind(f"one of {', '.join(choices)}", "{" + ",".join(choices) + "}")
    return _KINDS.get(field.plain, FieldKind("text", "TEXT"))


def expects(field: SettingField) -> str:
    """The expected values, as `a duration > 0s such as 250ms, 30s or 2m`."""
    kind = kind_of(field)
    return f"{kind.expects}{_bounds(field)}" + (f" such as {kind.such_as}" if kind.such_as else "")


def is_flag_only(field: SettingField) -> bool:
    """Whether the setting cannot be set by environment or file."""
    return any(isinstance(each, FlagOnly) for each in field.metadata)


def default_of(field: SettingField) -> str:
    """The default for the help, as `default: 30s`."""
    if field.is_required:
        return "required"
    default = field.make_default()
    if default is None:
        return "default: none"
    if isinstance(default, bool):
        return f"default: {'yes' if default else 'no'}"
    return f"default: {kind_of(field).write(default)}"


def _bounds(field: SettingField) -> str:
    write, bounds = kind_of(field).write, field.bounds
    signs = ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt))
    found = [f"{sign} {write(bound)}" for sign, bound in signs if bound is not None]
    if bounds.min_length:
        found.append("that is not empty")
    return f" {' and '.join(found)}" if found else ""


SettingsT = TypeVar("SettingsT", bound=SettingsModel)


class SettingsError(Exception):
    """Invalid settings; one line for each error."""

    exit_code: ClassVar[int] = 2

    def __init__(self, *errors: str) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class _Given:
    """A given value and its source."""

    value: Any
    origin: str
    """A variable, or a file and its key; empty for a flag."""

    @property
    def from_origin(self) -> str:
        """The end of an error message."""
        return f" (from {self.origin})" if self.origin else ""


class _Help(argparse.HelpFormatter):
    """Shows the value of a flag as optional only for switches."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        metavar = str(action.metavar or default_metavar)
        return f"[{metavar}]" if action.const == "true" else metavar


class _Flags(argparse.ArgumentParser):
    """A parser that raises its errors, so that they are reported with the others."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://.+:\d+", re.ASCII)
"""A service's address as Kubernetes writes it, IPv6 in brackets or without."""
_NOTHING = object()
"""The value of a flag without an argument."""


class Reading(Generic[SettingsT]):
    """Reads the settings of one class for one program."""

    def __init__(self, settings: type[SettingsT], prog: str) -> None:
        self._settings = settings
        self._fields = settings.model_fields
        self._in_sources = [name for name, field in self._fields.items() if not is_flag_only(field)]
        self._prog = prog
        self._errors: list[str] = []
        self._unread = False
        """A source could not be read at all, and may contain missing settings."""

    def read(self, argv: Sequence[str], env: Mapping[str, str]) -> SettingsT:
        flags = self._flags(argv)
        variables = self._variables(env)
        file = flags.pop("config", None) or variables.pop("config", None)
        given = {**(self._file(file) if file else {}), **variables, **flags}
        usable = {name: one.value for name, one in given.items() if one.value is not _NOTHING}
        self._errors += [f"{_flag(name)}: needs {expects(self._fields[name])}" for name in given if name not in usable]
        try:
            settings = self._settings.model_validate(usable)
        except InvalidSettings as error:
            self._errors += [
                self._error_of(each, given)
                for each in error.problems
                if not (each.is_missing and (self._unread or each.name in given))
            ]
            raise SettingsError(*self._errors) from None
        if self._errors:
            raise SettingsError(*self._errors)
        return settings

    # -- sources -------------------------------------------------------------------------------------------------

    def _flags(self, argv: Sequence[str]) -> dict[str, _Given]:
        parser = self._parser()
        try:
            known, unknown = parser.parse_known_args(argv)
        except SettingsError as error:
            self._errors += [f"{each}; see --help" for each in error.errors]
            self._unread = True
            return {}
        before = ""
        for each in unknown:
            flag, equals, _ = each.partition("=")
            if each.startswith("-"):
                meant = did_you_mean(flag, [_flag(name) for name in [*self._fields, "config"]])
                self._errors.append(f"{flag}: no such flag{meant}; see --help")
            elif not before.startswith("-"):  # otherwise it is the value of an unknown flag
                self._errors.append(f"{each}: unexpected argument; see --help")
            before = "" if equals else each
        return {name: _Given(value, "") for name, value in vars(known).items()}

    def _variables(self, env: Mapping[str, str]) -> dict[str, _Given]:
        # Variables of other programs may share the prefix: unknown ones are ignored.
        return {
            name: _Given(value, _variable(name))
            for name in [*self._in_sources, "config"]
            if (value := env.get(_variable(name), "")) != "" and not _is_service_link(_variable(name), value)
        }

    def _file(self, path: _Given) -> dict[str, _Given]:
        content = self._yaml(path)
        for key in content:
            if key not in self._in_sources:
                self._errors.append(f"{path.value}: {key}: no such setting{did_you_mean(str(key), self._in_sources)}")
        return {
            key: _Given(_text(value), f"{path.value}: {key}")
            for key, value in content.items()
            if key in self._in_sources and value is not None
        }

    def _yaml(self, path: _Given) -> dict[Any, Any]:
        import yaml  # noqa: PLC0415 - for processes that have a file of settings

        from slotmesh.spec.safe_yaml import read_settings  # noqa: PLC0415 - likewise

        if path.value is _NOTHING:
            problem = "needs a path"
        else:
            try:
                content = read_settings(Path(path.value).read_text(encoding="utf-8"))
            except (OSError, UnicodeError) as error:
                problem = f"{path.value} cannot be read: {getattr(error, 'strerror', None) or error}"
            except yaml.YAMLError as error:
                problem = f"{path.value} is not valid YAML: {' '.join(str(error).split())}"
            else:
                if content is None:
                    return {}
                if isinstance(content, dict):
                    return content
                problem = f"expected {path.value} to hold a map of settings, got {content!r:.40}"
        self._unread = True
        self._errors.append(f"--config: {problem}{path.from_origin}")
        return {}

    # -- help and errors -------------------------------------------------------------------------------------------

    def _parser(self) -> _Flags:
        parser = _Flags(
            prog=self._prog,
            description=(self._settings.__doc__ or "").strip().partition("\n")[0],
            epilog="Flags override SLOTMESH_* variables, which override the file. Exit status 2: invalid settings.",
            formatter_class=_Help,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        for name, field in self._fields.items():
            kind, is_switch = kind_of(field), field.plain is bool
            parser.add_argument(
                _flag(name),
                dest=name,
                nargs="?",  # a missing value is reported together with all other errors
                const="true" if is_switch else _NOTHING,
                metavar="true|false" if is_switch else kind.placeholder,
                help=self._help(name).replace("%", "%%"),
            )
            if is_switch:
                no = "--no-" + _flag(name)[2:]
                parser.add_argument(no, dest=name, action="store_const", const="false", help=argparse.SUPPRESS)
        parser.add_argument(
            "--config",
            nargs="?",
            const=_NOTHING,
            metavar="FILE",
            help=f"YAML file with settings: a map of the names above, with _ for - (env {_variable('config')})",
        )
        return parser

    def _help(self, name: str) -> str:
        field = self._fields[name]
        variable = "" if is_flag_only(field) else f", env {_variable(name)}"
        return f"{field.description} ({default_of(field)}{variable})"

    def _error_of(self, problem: SettingProblem, given: Mapping[str, _Given]) -> str:
        name, words = problem.name, problem.words
        if name is None:  # several fields: the message names them
            return words
        field, flag = self._fields[name], _flag(name)
        if problem.is_missing:
            variable = "" if is_flag_only(field) else f" or {_variable(name)}"
            return f"{flag}: required; give {flag} {kind_of(field).placeholder}{variable}"
        one = given.get(name, _Given(problem.value, ""))
        return f"{flag}: {words or f'expected {expects(field)}, got {one.value!r}'}{one.from_origin}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return "SLOTMESH_" + name.upper()


def _is_service_link(variable: str, value: str) -> bool:
    """Whether a container engine has set the variable, to the address of a service.

    For a Service `slotmesh` Kubernetes sets SLOTMESH_PORT=tcp://10.0.0.1:7071 in all pods of its namespace, for
    `slotmesh-metrics` SLOTMESH_METRICS_PORT. Neither is a setting. (`enableServiceLinks: false` avoids them.)
    """
    return variable.endswith("_PORT") and _SERVICE_LINK.fullmatch(value) is not None


def _text(value: Any) -> Any:
    """A scalar of the file as the text of a flag, so that both are parsed alike. Numbers are texts already."""
    return str(value).lower() if isinstance(value, bool) else value
