"""Settings of TLS: which files they lead to, and the words where those are missing or cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller_service.config import ControllerSettings
from replica_service.config import ReplicaSettings
from router_service.config import RouterSettings
from slotmesh.config import SettingsError
from tests.support.certificates import Authority

REPLICA = ("--handler", "words:Count", "--backend", "digits")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


def router(*flags: str, env: dict[str, str] | None = None) -> RouterSettings:
    return RouterSettings.parse(flags, env or {}, prog="router")


def mistake(*flags: str) -> str:
    with pytest.raises(SettingsError) as caught:
        router(*flags).tls_source()
    return str(caught.value)


def test_without_settings_there_is_no_tls() -> None:
    assert router().tls_source() is None


def test_nobody_without_certificates_waits_for_cryptography() -> None:
    program = (
        "import sys, router_service.config as config; config.RouterSettings().tls_source();"
        "sys.exit('cryptography' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_directory_has_a_certificate_for_each_role(authority: Authority) -> None:
    flags = ("--tls-dir", str(authority.whole_mesh()))
    for settings, uri in (
        (router(*flags), "spiffe://mesh.test/router"),
        (ControllerSettings.parse(flags, {}, prog="controller"), "spiffe://mesh.test/controller"),
        (ReplicaSettings.parse([*REPLICA, *flags], {}, prog="replica"), "spiffe://mesh.test/replica"),
    ):
        source = settings.tls_source()
        assert source is not None
        assert source.current().uri == uri


def test_a_replica_prefers_the_certificate_of_its_backend(authority: Authority) -> None:
    authority.whole_mesh()
    authority.issue("replica", "digits")
    source = ReplicaSettings.parse([*REPLICA, "--tls-dir", str(authority.directory)], {}, prog="replica").tls_source()
    assert source is not None
    assert source.current().uri == "spiffe://mesh.test/replica/digits"


def test_paths_go_before_the_directory(authority: Authority) -> None:
    authority.whole_mesh()
    files = authority.issue("router", stem="another")
    env = {"SLOTMESH_TLS_DIR": str(authority.directory)}
    source = router("--tls-cert", str(files.cert), "--tls-key", str(files.key), env=env).tls_source()
    assert source is not None
    assert source.files.ca == authority.ca
    assert source.files.cert == files.cert


def test_what_is_missing_is_named_with_the_way_out(authority: Authority, tmp_path: Path) -> None:
    directory = authority.directory
    nowhere = tmp_path / "nowhere"
    assert "--tls-key is required with --tls-cert" in mistake("--tls-cert", "a.crt")
    assert "--tls-cert is required with --tls-key" in mistake("--tls-key", "a.key")
    assert "--tls-ca is required with --tls-cert" in mistake("--tls-cert", "a.crt", "--tls-key", "a.key")
    assert "--tls-cert and --tls-key are required with --tls-ca" in mistake("--tls-ca", "ca.crt")
    assert f"{nowhere} is no directory; `slotmesh certs init --dir {nowhere}`" in mistake("--tls-dir", str(nowhere))
    assert f"`slotmesh certs issue router --dir {directory}` makes it" in mistake("--tls-dir", str(directory))
    authority.issue("router")
    (directory / "router.key").unlink()
    assert "router.key is missing: the private key of router.crt" in mistake("--tls-dir", str(directory))
    authority.ca.unlink()
    assert f"ca.crt is missing; `slotmesh certs init --dir {directory}`" in mistake("--tls-dir", str(directory))


def test_files_that_cannot_be_used_are_mistakes_of_settings(authority: Authority) -> None:
    flags = ("--tls-dir", str(authority.whole_mesh()))
    key = authority.directory / "router.key"
    key.chmod(0o644)
    assert f"TLS: {key}: the key (--tls-key) can be read or written by others" in mistake(*flags)
    authority.issue("controller", stem="router")
    key.write_bytes((authority.directory / "replica.key").read_bytes())
    assert "is not the key of the certificate in" in mistake(*flags)
