"""Settings of tokens: what goes with what, and the words where it does not."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from controller_service.config import ControllerSettings
from router_service.config import RouterSettings
from slotmesh.config import SettingsError
from tests.support.certificates import Authority
from tests.support.issuers import AUDIENCE, ISSUER, Issuer
from tests.support.token_files import accepts, created


@pytest.fixture
def tls(tmp_path: Path) -> list[str]:
    return ["--tls-dir", str(Authority(tmp_path / "certs").whole_mesh())]


def router(*flags: str) -> RouterSettings:
    return RouterSettings.parse(flags, {}, prog="router")


def mistake(*flags: str) -> str:
    with pytest.raises(SettingsError) as caught:
        router(*flags).token_verifier()
    return str(caught.value)


def test_without_settings_no_token_is_accepted(tls: list[str]) -> None:
    assert router().token_verifier() is None
    assert router(*tls).token_verifier() is None


def test_static_tokens_and_those_of_an_issuer_are_accepted_together(tls: list[str], tmp_path: Path) -> None:
    issuer, path = Issuer(tmp_path), tmp_path / "tokens.json"
    secret = created(path)
    issued = ["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks", str(issuer.jwks)]
    flags = [*tls, *issued, "--tokens", str(path)]
    for settings in (router(*flags), ControllerSettings.parse(flags, {}, prog="controller")):
        tokens = settings.token_verifier()
        assert tokens is not None
        assert tokens.identify(secret).name == tokens.identify(issuer.token()).name == "client/alice"
    only_keys = router(*tls, *issued, "--jwt-algorithms", "EdDSA, RS256", "--jwt-roles-claim", "groups")
    tokens = only_keys.token_verifier()
    assert tokens is not None
    assert tokens.identify(issuer.token("two", "EdDSA", groups=["viewer"])).name == "viewer/alice"
    assert not accepts(tokens, issuer.token(groups=["viewer"])), "signed by ES256"
    assert only_keys.jwt_leeway == timedelta(seconds=30)


def test_tokens_travel_by_tls_only(tmp_path: Path) -> None:
    created(path := tmp_path / "tokens.json")
    assert "--tokens: tokens need TLS, as anyone on the network could read them: `slotmesh certs init" in mistake(
        "--tokens", str(path)
    )
    issuer = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks", "jwks.json")
    assert "--jwt-issuer: tokens need TLS" in mistake(*issuer, "--insecure")


def test_what_is_half_given_is_named_with_what_is_missing(tls: list[str], tmp_path: Path) -> None:
    assert "--jwt-issuer: needs --jwt-audience TEXT (the claim aud) and --jwt-jwks FILE" in mistake(
        *tls, "--jwt-issuer", "x"
    )
    assert "--jwt-jwks: needs --jwt-issuer URL (the claim iss) and --jwt-audience TEXT" in mistake(
        *tls, "--jwt-jwks", "x"
    )
    for algorithms, words in {
        "none": "none means that tokens are not signed",
        "ES256,HS256": "HS256 signs with the secret that it is checked with",
        "ES999": "'ES999' is not one of RS256",
        ",": "at least one is needed",
    }.items():
        assert f"--jwt-algorithms: {words}" in mistake(*tls, "--jwt-algorithms", algorithms)
    assert "--jwt-leeway: expected a duration >= 0s and <= 5m" in mistake(*tls, "--jwt-leeway", "6m")
    assert f"tokens: {tmp_path}/none: there is no such file of tokens" in mistake(*tls, "--tokens", f"{tmp_path}/none")


def test_nobody_without_an_issuer_waits_for_cryptography() -> None:
    program = (
        "import sys, router_service.config as config, slotmesh.cli.app; config.RouterSettings().token_verifier();"
        "sys.exit('cryptography' in sys.modules or 'jwt' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
