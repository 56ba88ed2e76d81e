"""The certificates and tokens with which commands connect, from common flags and environment variables.

Purpose: `connects` adds the flags to a command; code that opens connections calls `credentials()`.
Invariants: without any of them connections are plain text. A token comes from the environment or a file, never from a
flag's value, which other users of the machine could read. No file is read before a connection is made.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, get_type_hints

import typer

from slotmesh.cli.console import WRONG_INPUT, CommandFailed, complete
from slotmesh.client.tls import Tls, dialer_of
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer, Token
from slotmesh.security.secret_files import FileGuard, UnusableFile, read_guarded
from slotmesh.security.tls_paths import chosen_paths

P = ParamSpec("P")

TOKEN: Final = "SLOTMESH_TOKEN"  # noqa: S105 - the name of a variable
_PEOPLE: Final = ("operator", "viewer", "client")
"""Kinds whose certificates are for commands, the one that may do most first."""
_MEMBERS: Final = ("controller", "router", "replica")
"""Kinds whose certificates are in the containers of services, where a command asks after their health."""
_PANEL: Final = "Connection"

_HELP: Final = {
    "tls_dir": "Use TLS, with ca.crt and the operator's certificate of this directory, as `slotmesh certs` makes.",
    "tls_ca": "PEM file with the certificates of trusted authorities; before that of --tls-dir.",
    "tls_cert": "PEM file with the certificate to show, which --tls-key goes with; before that of --tls-dir.",
    "tls_key": "PEM file with its private key (mode 600).",
    "token_file": "File with a bearer token (mode 600); or give the token itself by SLOTMESH_TOKEN. Only with TLS.",
}
_FLAGS: Final[dict[str, Any]] = {
    name: Annotated[
        Path | None,
        typer.Option(
            f"--{name.replace('_', '-')}",
            envvar=f"SLOTMESH_{name.upper()}",
            metavar="DIR" if name == "tls_dir" else "FILE",
            rich_help_panel=_PANEL,
            help=text,
        ),
    ]
    for name, text in _HELP.items()
}


@dataclass(frozen=True)
class Credentials:
    """What was given."""

    tls_dir: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None

    @cached_property
    def dialer(self) -> Dialer:
        """What opens connections. Raises CommandFailed where it cannot be had."""
        if self.token is not None and self.tls is None:
            raise CommandFailed(
                "a token is sent by TLS only, as it could be read on the way: give --tls-dir or --tls-ca",
                WRONG_INPUT,
            )
        try:
            return dialer_of(self.tls, self.token)
        except ValueError as error:
            raise CommandFailed(str(error), WRONG_INPUT) from None

    @cached_property
    def tls(self) -> Tls | None:
        """For `slotmesh.connect`. Raises CommandFailed where it is not complete."""
        names = [] if self.tls_dir is None else _names_in(self.tls_dir, is_required=self.token is None)
        given = (self.tls_dir, self.tls_ca, self.tls_cert, self.tls_key)
        try:
            paths = chosen_paths(*given, names=names if self.tls_cert is None else [], needs_certificate=False)
        except ValueError as error:
            raise CommandFailed(str(error), WRONG_INPUT) from None
        return None if paths is None else Tls(paths.ca, paths.cert, paths.key)

    @cached_property
    def token(self) -> Token | None:
        """For `slotmesh.connect`. Raises CommandFailed where there is a file without one."""
        if self.token_file is not None:
            path = self.token_file
            _read_token(path)
            return lambda: _read_token(path)
        return os.environ.get(TOKEN) or None

    @property
    def of_members(self) -> list[str]:
        """Flags for members of a mesh that a command starts: each finds its own certificate in the directory."""
        if self.tls_dir is None:
            return []
        ca = [] if self.tls_ca is None else [f"--tls-ca={self.tls_ca.absolute()}"]
        return [f"--tls-dir={self.tls_dir.absolute()}", *ca]


_CREDENTIALS: Final[ContextVar[Credentials | None]] = ContextVar("slotmesh_credentials", default=None)


def credentials() -> Credentials:
    """Those of the command that runs; none outside of commands."""
    return _CREDENTIALS.get() or Credentials()


def dialer() -> Dialer:
    """What the command that runs opens connections with. Raises CommandFailed where it cannot be had."""
    given = _CREDENTIALS.get()
    return PLAIN_TEXT if given is None else given.dialer


def connects(command: Callable[P, Any]) -> Callable[P, Any]:
    """The same command with flags for certificates and tokens, run until it is complete."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    own = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items()]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=None, annotation=each) for name, each in _FLAGS.items()]

    @wraps(command)
    def with_credentials(*args: Any, **given: Any) -> Any:
        shown = Credentials(**{name: given.pop(name) for name in _FLAGS})
        before = _CREDENTIALS.set(shown)
        try:
            done: Any = command(*args, **given)
            return complete(done) if inspect.iscoroutine(done) else done
        finally:
            _CREDENTIALS.reset(before)

    made: Any = with_credentials
    made.__signature__ = signature.replace(parameters=[*own, *added], return_annotation=hints.get("return"))
    made.__annotations__ = {**hints, **_FLAGS}
    return with_credentials


def _names_in(directory: Path, *, is_required: bool) -> list[str]:
    """Whose certificates of a directory are to be shown, the best first.

    Raises:
        CommandFailed: there are several of the best kind, and one `is_required`.
    """
    found = {path.name.removesuffix(".crt") for path in directory.glob("*.crt")}
    for kind in _PEOPLE:
        of_kind = sorted(name for name in found if name == kind or name.startswith(f"{kind}-"))
        if len(of_kind) > 1 and is_required:
            files = ", ".join(f"{name}.crt" for name in of_kind)
            raise CommandFailed(
                f"--tls-dir: {directory} has several certificates to choose from, {files}; choose one with --tls-cert "
                "and --tls-key (SLOTMESH_TLS_CERT, SLOTMESH_TLS_KEY)",
                WRONG_INPUT,
            )
        if of_kind:
            return of_kind if len(of_kind) == 1 else []
    return [name for kind in _MEMBERS for name in sorted(found) if name == kind or name.startswith(f"{kind}-")]


def _read_token(path: Path) -> str:
    """Raises CommandFailed."""
    try:
        token = read_guarded(path, "file with a token", FileGuard.SECRET).decode().strip()
    except FileNotFoundError:
        raise CommandFailed(f"--token-file: {path}: there is no such file", WRONG_INPUT) from None
    except UnusableFile as error:
        raise CommandFailed(f"--token-file: {error}", WRONG_INPUT) from None
    except UnicodeError:
        raise CommandFailed(f"--token-file: {path}: it is not text", WRONG_INPUT) from None
    if not token:
        raise CommandFailed(f"--token-file: {path} is empty", WRONG_INPUT)
    return token
