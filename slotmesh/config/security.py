"""Settings of TLS and of bearer tokens: certificates, keys, authorities, static tokens and an issuer of JWTs.

Invariants: without any of the TLS settings there is no TLS; with some of them they must be complete, or the process
does not start. The same applies to an issuer. Tokens are sent over TLS only. `cryptography`, which takes most of a
second to import, is imported only with certificates, and `jwt` only with an issuer.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from slotmesh.config import Duration, FieldKind, Settings, SettingsError
from slotmesh.config.declaring import Field, model_validator
from slotmesh.config.listening import SET_UP
from slotmesh.security.secret_files import UnusableFile
from slotmesh.security.tls_paths import TlsPaths, chosen_paths
from slotmesh.security.tokens import Tokens
from slotmesh.security.tokens.rules import DEFAULT_ALGORITHMS, MAX_LEEWAY_S, JwtRules, algorithms_problem
from slotmesh.units import parse_names

if TYPE_CHECKING:
    from slotmesh.security.identity import Role
    from slotmesh.security.tls import TlsSource


class TlsSettings(Settings):
    """Base of the settings of processes with certificates. `tls_names` are a service's file names in a directory."""

    tls_dir: Path | None = Field(
        None,
        description="Directory with certificates, as `slotmesh certs` makes it: ca.crt, ROLE.crt and ROLE.key; for a "
        "replica replica-BACKEND.crt, or replica.crt.",
    )
    tls_ca: Path | None = Field(
        None, description="PEM file with the certificates of trusted authorities; overrides that of --tls-dir."
    )
    tls_cert: Path | None = Field(
        None, description="PEM file with the own certificate, for --tls-key; overrides that of --tls-dir."
    )
    tls_key: Path | None = Field(
        None, description="PEM file with the private key, which other users of the machine cannot read (mode 600)."
    )

    tls_crl: Path | None = Field(
        None,
        description="PEM file with lists of certificates that the authorities have revoked, as `slotmesh certs revoke` "
        "makes it; overrides ca.crl of --tls-dir.",
    )

    @property
    def tls_names(self) -> tuple[str, ...]:
        """File names of the service in --tls-dir, without .crt and .key; the first existing one is used."""
        raise NotImplementedError

    @property
    def tls_paths(self) -> TlsPaths | None:
        """The files to use; None without TLS.

        Raises:
            ValueError: they are incomplete.
        """
        given = (self.tls_dir, self.tls_ca, self.tls_cert, self.tls_key)
        return chosen_paths(*given, crl=self.tls_crl, names=self.tls_names)

    @model_validator
    def _has_whole_tls(self) -> Self:
        _ = self.tls_paths
        return self

    def tls_source(self, role: Role | None = None, backend: str = "") -> TlsSource | None:
        """The certificates, validated, and reloaded when they change; None without TLS. Called once per process.

        With a role they must be those of a server of this role, and of a replica of this backend.

        Raises:
            SettingsError: they cannot be used; the message has the file and the way out.
        """
        if (paths := self.tls_paths) is None:
            return None
        from slotmesh.security.tls import BadTls, TlsFiles, TlsSource  # noqa: PLC0415 - see the head of the module

        try:
            source = TlsSource(TlsFiles(paths.ca, paths.cert, paths.key, paths.crl))
            if role is not None:
                source.require_server(role, backend)
            return source
        except BadTls as error:
            raise SettingsError(f"TLS: {error}") from None


_ISSUER: Final = {
    "jwt_issuer": "--jwt-issuer URL (the claim iss)",
    "jwt_audience": "--jwt-audience TEXT (the claim aud)",
    "jwt_jwks": "--jwt-jwks FILE (the issuer's public keys)",
}
Names = Annotated[str, FieldKind("names with commas between them", "NAME[,NAME]")]


def _check_algorithms(text: str) -> None:
    if problem := algorithms_problem(parse_names(text)):
        raise ValueError(problem)


class TokenSettings(TlsSettings):
    """Base of the settings of routers and controllers, which accept bearer tokens."""

    tokens: Path | None = Field(
        None,
        description="File with static bearer tokens, as `slotmesh token create` makes it; other users of the machine "
        "cannot read it (mode 600). Needs TLS.",
    )
    jwt_issuer: str | None = Field(
        None,
        min_length=1,
        description="Issuer whose JWTs are accepted as bearer tokens: the claim iss. Needs TLS, and "
        "--jwt-audience and --jwt-jwks.",
    )
    jwt_audience: str | None = Field(None, min_length=1, description="Required value in the claim aud of a JWT.")
    jwt_jwks: Path | None = Field(
        None, description="File with the issuer's public keys (JWKS), reloaded when it changes."
    )
    jwt_algorithms: Names = Field(
        ",".join(DEFAULT_ALGORITHMS),
        check=_check_algorithms,
        description="Algorithms of JWTs, separated by commas: RS, PS or ES with 256, 384 or 512, and EdDSA.",
    )
    jwt_roles_claim: str = Field(
        "slotmesh_roles",
        min_length=1,
        description="Claim of a JWT with a list of the roles of its holder: viewer, invoker, operator.",
    )
    jwt_leeway: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        le=timedelta(seconds=MAX_LEEWAY_S),
        description="Allowed difference of the issuer's clock.",
    )

    @property
    def accepts_tokens(self) -> bool:
        """Whether any bearer token is accepted."""
        return self.tokens is not None or self.jwt_issuer is not None

    @model_validator
    def _has_whole_issuer(self) -> Self:
        given = [name for name in _ISSUER if getattr(self, name) is not None]
        if missing := [words for name, words in _ISSUER.items() if given and name not in given]:
            raise ValueError(f"--{given[0].replace('_', '-')}: needs {' and '.join(missing)} as well")
        return self

    @model_validator
    def _travel_by_tls(self) -> Self:
        if self.accepts_tokens and self.tls_paths is None:
            flag = "--tokens" if self.tokens is not None else "--jwt-issuer"
            raise ValueError(f"{flag}: tokens need TLS, as anyone on the network could read them: {SET_UP}")
        return self

    def token_verifier(self) -> Tokens | None:
        """Identifies the holders of tokens, by validated files; None: no token is accepted.

        Called once per process.

        Raises:
            SettingsError: a file cannot be used; the message has its name and the way out.
        """
        if not self.accepts_tokens:
            return None
        rules = None
        if self.jwt_issuer is not None and self.jwt_audience is not None:
            rules = JwtRules(
                issuer=self.jwt_issuer,
                audience=self.jwt_audience,
                algorithms=parse_names(self.jwt_algorithms),
                roles_claim=self.jwt_roles_claim,
                leeway_s=self.jwt_leeway.total_seconds(),
            )
        try:
            return Tokens(self.tokens, self.jwt_jwks, rules)
        except UnusableFile as error:
            raise SettingsError(f"tokens: {error}") from None
