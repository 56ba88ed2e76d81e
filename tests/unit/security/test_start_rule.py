"""Whether a server may start: every host, with and without TLS, tokens and --insecure."""

from __future__ import annotations

import itertools

import pytest

from controller_service.config import ControllerSettings
from replica_service.config import ReplicaSettings
from router_service.config import RouterSettings
from slotmesh.config import SettingsError
from slotmesh.config.listening import Reach, reach_of, start_problem
from slotmesh.config.members import MemberSettings
from tests.support.certificates import Authority

HOSTS = {
    "127.0.0.1": Reach.LOOPBACK,
    "127.8.8.8": Reach.LOOPBACK,
    "::1": Reach.LOOPBACK,
    "localhost": Reach.LOOPBACK,
    "unix:/run/slotmesh.sock": Reach.UNIX_SOCKET,
    "/run/slotmesh.sock": Reach.UNIX_SOCKET,
    "0.0.0.0": Reach.WILDCARD,
    "::": Reach.WILDCARD,
    "192.0.2.7": Reach.OTHER,
    "2001:db8::7": Reach.OTHER,
    "mesh.example": Reach.OTHER,
    "localhost.example": Reach.OTHER,
    "127.1": Reach.OTHER,
    "": Reach.OTHER,
}
SWITCHES = list(itertools.product((False, True), repeat=3))
SERVICES: tuple[type[MemberSettings], ...] = (ControllerSettings, RouterSettings, ReplicaSettings)


@pytest.mark.parametrize(("host", "reach"), list(HOSTS.items()))
def test_who_can_connect_to_a_host(host: str, reach: Reach) -> None:
    assert reach_of(host) is reach


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("tls", "tokens", "insecure"), SWITCHES)
def test_the_matrix(host: str, tls: bool, tokens: bool, insecure: bool) -> None:
    problem = start_problem(host, tls=tls, tokens=tokens, insecure=insecure)
    is_private = HOSTS[host] in (Reach.LOOPBACK, Reach.UNIX_SOCKET)
    assert (problem is None) is (tls or (not tokens and (is_private or insecure)))
    if problem is not None:
        assert "slotmesh certs init" in problem
        assert "--tls-dir" in problem
        assert ("--insecure" in problem) is not tokens


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "192.0.2.7"])
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(("tls", "insecure"), list(itertools.product((False, True), repeat=2)))
def test_settings_of_every_service_follow_it(
    service: type[MemberSettings], host: str, tls: bool, insecure: bool, authority: Authority
) -> None:
    flags = [f"--host={host}", f"--metrics-host={host}", "--advertise=a.example"]
    flags += [f"--tls-dir={authority.directory}"] if tls else []
    flags += ["--insecure"] if insecure else []
    flags += ["--handler=a:B"] if service is ReplicaSettings else []
    if tls or insecure or host == "127.0.0.1":
        assert service.parse(flags, {}, prog="p").host == host
    else:
        with pytest.raises(SettingsError) as caught:
            service.parse(flags, {}, prog="p")
        assert [each.partition(":")[0] for each in caught.value.errors] == ["--host", "--metrics-host"]


@pytest.mark.parametrize("service", [ControllerSettings, RouterSettings])
def test_a_port_for_tokens_needs_tls(service: type[ControllerSettings], authority: Authority) -> None:
    with pytest.raises(SettingsError, match=r"--token-port: tokens need TLS.*slotmesh certs init"):
        service.parse(["--token-port=0", "--insecure"], {}, prog="p")
    flags = ["--token-port=0", f"--tls-dir={authority.directory}"]
    with pytest.raises(SettingsError, match=r"--token-port: no client could use it.*--tokens FILE"):
        service.parse(flags, {}, prog="p")
    flags.append("--tokens=tokens.json")
    assert service.parse(flags, {}, prog="p").token_port == 0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certs"))
    made.whole_mesh()
    return made
