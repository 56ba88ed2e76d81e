"""Connections to etcd by TLS, and with a user: what is needed, what is refused, and that no message has a secret."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Final

import pytest

from controller_service.config import ControllerSettings
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.etcd import moving
from controller_service.store.etcd.moving import read_state
from controller_service.store.etcd.store import EtcdCandidacy, EtcdStore
from controller_service.store.protocol import StateRefused
from slotmesh.config import SettingsError
from slotmesh.config.etcd import PLAIN_ACCESS, EtcdAccess, EtcdPlace, etcd_place
from slotmesh.spec.model import Backend
from tests.support.certificates import Authority
from tests.support.etcd import EtcdCluster, EtcdMember, etcd_cluster, needs_etcd

PASSWORD: Final = "a secret of etcd"
V1: Final = ChangeSet(put_backends=(Backend(name="v1"),))


async def leading(place: EtcdPlace, access: EtcdAccess) -> EtcdStore:
    store = await EtcdCandidacy(place, access, lambda: ("a" * 32, Desired())).try_to_lead()
    assert store is not None
    return store


def with_authentication(member: EtcdMember, mesh: str) -> None:
    """User `prod`, with readwrite on the prefix of one mesh."""
    prefix = f"/slotmesh/{mesh}/"
    permission = {
        "permType": "READWRITE",
        "key": b64encode(prefix.encode()).decode(),
        "range_end": b64encode(f"/slotmesh/{mesh}0".encode()).decode(),
    }
    for path, request in (
        ("auth/user/add", {"name": "root", "password": "root"}),
        ("auth/user/grant", {"user": "root", "role": "root"}),
        ("auth/role/add", {"name": "mesh"}),
        ("auth/role/grant", {"name": "mesh", "perm": permission}),
        ("auth/user/add", {"name": "prod", "password": PASSWORD}),
        ("auth/user/grant", {"user": "prod", "role": "mesh"}),
        ("auth/enable", {}),
    ):
        member.post(path, request)


def secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@needs_etcd
@pytest.mark.asyncio
async def test_a_user_needs_the_prefix_of_its_mesh_and_nothing_else(tmp_path: Path) -> None:
    async with etcd_cluster(tmp_path / "etcd") as cluster:
        member = cluster.members[0]
        await asyncio.to_thread(with_authentication, member, "m")
        access = EtcdAccess(user="prod", password_file=secret(tmp_path / "password", f"{PASSWORD}\n"))
        store = await leading(cluster.place(), access)
        await store.commit(V1, expected_revision=1)
        member.kill()
        cluster.start(member)
        await store.commit(ChangeSet(), expected_revision=2)  # tokens of the member before count no longer
        await store.close()
        assert (await read_state(cluster.place(), access))[1].backends.keys() == {"v1"}

        for place, wrong, reason in (
            (cluster.place("other"), access, "permission denied: grant the user readwrite on the prefix"),
            (cluster.place(), PLAIN_ACCESS, "user name is empty: this etcd has authentication: give --etcd-user"),
            (cluster.place(), access._replace(user="nemo"), "check --etcd-user and the file of --etcd-password-file"),
            (
                cluster.place(),
                access._replace(password_file=secret(tmp_path / "wrong", "wrong secret")),
                "check --etcd-user and the file of --etcd-password-file",
            ),
            (cluster.place(), access._replace(password_file=tmp_path / "missing"), "--etcd-password-file: "),
        ):
            with pytest.raises(StateRefused) as refused:
                await leading(place, wrong)
            assert reason in str(refused.value)
            assert "secret" not in str(refused.value)


@needs_etcd
@pytest.mark.asyncio
async def test_both_sides_show_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, stranger = Authority(tmp_path / "tls"), Authority(tmp_path / "stranger")
    server = authority.issue("controller", stem="etcd", dns=["127.0.0.1"])
    own = authority.issue("controller")
    (tmp_path / "etcd").mkdir()
    flags = [f"--cert-file={server.cert}", f"--key-file={server.key}", f"--trusted-ca-file={authority.ca}"]
    cluster = EtcdCluster(tmp_path / "etcd", 1, [*flags, "--client-cert-auth"])
    cluster.members[0].scheme = "https"
    cluster.start()
    try:
        access = EtcdAccess(authority.ca, own.cert, own.key)
        store = await leading(cluster.place(), access)
        await store.commit(V1, expected_revision=1)
        await store.close()
        assert (await read_state(cluster.place(), access))[1].backends.keys() == {"v1"}
        monkeypatch.setattr(moving, "START_S", 0.0)
        by_name = EtcdPlace((cluster.place().members[0].replace("127.0.0.1", "localhost"),), "m")
        for place, wrong, reason in (
            (cluster.place(), PLAIN_ACCESS, ""),
            (cluster.place(), EtcdAccess(authority.ca), ""),
            (cluster.place(), access._replace(ca=stranger.ca), "is not signed by an authority of --etcd-ca"),
            (by_name, access, "does not name that host"),
        ):
            with pytest.raises(StateRefused, match=f"etcd at .*{reason}"):
                await leading(place, wrong)
        assert own.key is not None
        own.key.chmod(0o644)
        with pytest.raises(StateRefused, match=r"the key for etcd can be read or written by others"):
            await leading(cluster.place(), access)
    finally:
        cluster.kill()


@pytest.mark.parametrize(
    ("text", "members", "mesh"),
    [
        ("etcd://127.0.0.1:2379/m", ("127.0.0.1:2379",), "m"),
        ("etcd://a:1,b:2,a:1/x.y-z_1", ("a:1", "b:2"), "x.y-z_1"),
        ("etcd://[::1]:2379/m", ("[::1]:2379",), "m"),
    ],
)
def test_places(text: str, members: tuple[str, ...], mesh: str) -> None:
    place = etcd_place(text)
    assert place == EtcdPlace(members, mesh)
    assert place is not None
    assert place.prefix == f"/slotmesh/{mesh}/"


@pytest.mark.parametrize(
    "text", ["etcd://", "etcd://a:1", "etcd://a:1/", "etcd:///m", "etcd://a/m", "etcd://a:1/m/n", "etcd://a:1/-"]
)
def test_what_is_no_place_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SettingsError, match=r"is not etcd://HOST:PORT\[,HOST:PORT\]/MESH"):
        ControllerSettings.parse([f"--state={text}"], {}, prog="p")


def test_a_password_in_a_place_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="--etcd-password-file") as refused:
        ControllerSettings.parse(["--state=etcd://prod:s3cret@a:1/m"], {}, prog="p")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--etcd-ca=/ca"], "are for a --state etcd://"),
        (["--state=/file", "--etcd-user=u", "--etcd-password-file=/p"], "are for a --state etcd://"),
        (["--state=etcd://a:1/m", "--etcd-user=u"], "--etcd-user and --etcd-password-file: give both"),
        (["--state=etcd://a:1/m", "--etcd-cert=/c", "--etcd-ca=/ca"], "give all three of them"),
        (["--state=etcd://a:1/m", "--etcd-cert=/c", "--etcd-key=/k"], "give all three of them"),
    ],
)
def test_settings_that_lack_a_part_are_refused(flags: list[str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        ControllerSettings.parse(flags, {}, prog="p")


def test_no_etcd_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "START_S", 0.0)
    with pytest.raises(StateRefused, match="etcd at 127"):
        asyncio.run(leading(EtcdPlace(("127.0.0.1:1",), "m"), PLAIN_ACCESS))


def test_what_a_start_waits_for_is_logged_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(moving, "START_S", 0.1)
    monkeypatch.setattr(moving, "SILENT_S", 0.0)
    with pytest.raises(StateRefused):
        asyncio.run(leading(EtcdPlace(("127.0.0.1:1",), "m"), PLAIN_ACCESS))
    assert [record.message.splitlines()[0] for record in caplog.records if "waited" in record.message]
