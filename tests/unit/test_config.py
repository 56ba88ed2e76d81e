"""Settings: four sources in order, units and bounds, and all mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

import pytest

from slotmesh.config import Duration, HostPort, ServiceSettings, Settings, SettingsError, Size
from slotmesh.config.declaring import Field, model_validator


def check_lower(name: str) -> None:
    if name != name.lower():
        raise ValueError(f"{name} is not in lower case")


class Example(Settings):
    """What a service may be told. Only this sentence and the first are one line."""

    name: str = Field("router", min_length=1, check=check_lower, description="Its name.")
    max_queued: int = Field(20_000, ge=1, description="Calls that may wait, at 100% load.")
    share: float = Field(0.5, gt=0, le=1, description="Share.")
    wait: Duration = Field(timedelta(seconds=30), gt=timedelta(0), description="Time in the queue.")
    memory: Size | None = Field(None, ge=1024, description="Bytes.")
    controller: HostPort | None = Field(None, description="Where the controller is.")
    launcher: Literal["process", "external"] = Field("process", description="Who starts replicas.")
    spec: Path | None = Field(None, description="A file.")
    insecure: bool = Field(False, description="Open.")

    @model_validator
    def _fits(self) -> Self:
        if self.launcher == "external" and self.spec is not None:
            raise ValueError("--spec: replicas that start by themselves need none; leave it out")
        return self


class Needy(Settings):
    """Needs to be told something."""

    handler: str = Field(description="What to run.")


def parse(argv: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Example:
    return Example.parse(argv, env or {}, prog="example")


def mistakes(argv: Sequence[str] = (), env: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(argv, env)
    assert str(caught.value) == "\n".join(caught.value.errors)
    return list(caught.value.errors)


def write(folder: Path, text: str) -> str:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_numbers_of_a_file_are_read_as_those_of_flags(tmp_path: Path) -> None:
    assert parse(["--config", write(tmp_path, "{max_queued: 010, share: 0.50}")]).max_queued == 10
    for text in ("1:30", "0x10", "0b11"):
        [error] = mistakes(["--config", write(tmp_path, f"max_queued: {text}")])
        assert f"got '{text}'" in error


def test_a_setting_that_a_file_gives_twice_is_refused(tmp_path: Path) -> None:
    [error] = mistakes(["--config", write(tmp_path, "max_queued: 1\nname: a\nmax_queued: 2\n")])
    assert "max_queued is given twice" in error


def test_defaults_hold() -> None:
    assert parse() == Example()


def test_flags_before_variables_before_file_before_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "{name: file, max_queued: 1, share: 0.25, wait: 1s}")
    env = {"SLOTMESH_NAME": "variable", "SLOTMESH_MAX_QUEUED": "2", "SLOTMESH_SHARE": "0.75"}
    settings = parse(["--config", file, "--name", "flag", "--max-queued=3"], env)
    assert (settings.name, settings.max_queued, settings.share) == ("flag", 3, 0.75)
    assert (settings.wait, settings.launcher) == (timedelta(seconds=1), "process")


@pytest.mark.parametrize("value", ["http://10.0.0.1:80", "tcp://10.0.0.1", "tcp://:7071", "xtcp://10.0.0.1:7071", "x"])
def test_what_is_no_address_of_a_service_is_refused_as_a_port(value: str) -> None:
    with pytest.raises(SettingsError, match=r"--port: .* \(from SLOTMESH_PORT\)"):
        ServiceSettings.parse([], {"SLOTMESH_PORT": value}, prog="p")


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    assert parse(env={"SLOTMESH_CONFIG": write(tmp_path, "name: file")}).name == "file"


@pytest.mark.parametrize("form", ["flag", "variable", "file"])
def test_every_type_in_every_source(form: str, tmp_path: Path) -> None:
    told = {
        "name": "x",
        "max_queued": "7",
        "share": "0.125",
        "wait": "250ms",
        "memory": "4MiB",
        "controller": "[::1]:7070",
        "launcher": "external",
        "insecure": "true",
    }
    match form:
        case "flag":
            flags = [part for name, value in told.items() for part in ("--" + name.replace("_", "-"), value)]
            settings = parse(flags)
        case "variable":
            settings = parse(env={f"SLOTMESH_{name.upper()}": value for name, value in told.items()})
        case _:
            lines = [
                f"{name}: {value!r}" if name == "controller" else f"{name}: {value}" for name, value in told.items()
            ]
            settings = parse(["--config", write(tmp_path, "\n".join(lines))])
    assert settings.model_dump() == {
        "name": "x",
        "max_queued": 7,
        "share": 0.125,
        "wait": timedelta(milliseconds=250),
        "memory": 4 * 2**20,
        "controller": "[::1]:7070",
        "launcher": "external",
        "spec": None,
        "insecure": True,
    }


@pytest.mark.parametrize(
    ("argv", "insecure"),
    [
        (["--insecure"], True),
        (["--insecure", "--name", "x"], True),
        (["--insecure=no"], False),
        (["--no-insecure"], False),
    ],
)
def test_switches(argv: list[str], insecure: bool) -> None:
    assert parse(argv, {"SLOTMESH_INSECURE": "1"}).insecure is insecure


def test_negative_numbers_are_values() -> None:
    assert ServiceSettings.parse(["--metrics-port", "-1"], {}, prog="p").metrics_port == -1


def test_an_empty_variable_or_key_is_unset_and_others_variables_are_left_alone(tmp_path: Path) -> None:
    file = write(tmp_path, "wait:\n")
    assert parse(["--config", file], {"SLOTMESH_NAME": "", "SLOTMESH_HANDLER": "a:b", "PATH": "/"}) == Example()
    assert parse(["--config", write(tmp_path, "# nothing\n")]) == Example()


def test_all_mistakes_are_told_at_once_and_where_they_were_made(tmp_path: Path) -> None:
    file = write(tmp_path, "{share: 2, wiat: 1s, launcher: docker, memory: [a], insecure: 3}")
    argv = ["--config", file, "--wait", "5", "--frobnicate", "now", "--max-queud=1", "stray", "--controller"]
    assert mistakes(argv, {"SLOTMESH_MAX_QUEUED": "x", "SLOTMESH_NAME": "Upper"}) == [
        "--frobnicate: no such flag; see --help",
        "--max-queud: no such flag; did you mean --max-queued?; see --help",
        "stray: unexpected argument; see --help",
        f"{file}: wiat: no such setting; did you mean wait?",
        "--controller: needs HOST:PORT",
        "--name: Upper is not in lower case (from SLOTMESH_NAME)",
        "--max-queued: expected a whole number >= 1, got 'x' (from SLOTMESH_MAX_QUEUED)",
        f"--share: expected a number > 0 and <= 1, got '2' (from {file}: share)",
        "--wait: expected a duration > 0s such as 250ms, 30s or 2m, got '5'",
        f"--memory: expected a size >= 1KiB such as 64KiB or 4MiB, got ['a'] (from {file}: memory)",
        f"--launcher: expected one of process, external, got 'docker' (from {file}: launcher)",
        f"--insecure: expected true or false, got '3' (from {file}: insecure)",
    ]


@pytest.mark.parametrize(
    ("argv", "mistake"),
    [
        (["--max-queued", "0"], "--max-queued: expected a whole number >= 1, got '0'"),
        (["--max-queued", "1.5"], "--max-queued: expected a whole number >= 1, got '1.5'"),
        (["--max-queued"], "--max-queued: needs a whole number >= 1"),
        (["--wait", "0s"], "--wait: expected a duration > 0s such as 250ms, 30s or 2m, got '0s'"),
        (["--memory", "1B"], "--memory: expected a size >= 1KiB such as 64KiB or 4MiB, got '1B'"),
        (["--controller", "localhost"], "--controller: expected HOST:PORT, got 'localhost'"),
        (["--name", ""], "--name: expected text that is not empty, got ''"),
        (["--insecure", "maybe"], "--insecure: expected true or false, got 'maybe'"),
        (["--no-insecure=1"], "argument --no-insecure: ignored explicit argument '1'; see --help"),
        (["--config"], "--config: needs a path"),
        (["--config", "/nowhere"], "--config: /nowhere cannot be read: No such file or directory"),
        (
            ["--launcher", "external", "--spec", "mesh.yaml"],
            "--spec: replicas that start by themselves need none; leave it out",
        ),
    ],
)
def test_one_mistake_is_one_line(argv: list[str], mistake: str) -> None:
    assert mistakes(argv) == [mistake]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("- a list", "expected {file} to hold a map of settings, got ['a list']"),
        ("text", "expected {file} to hold a map of settings, got 'text'"),
        ("a: [", "{file} is not valid YAML: while parsing a flow"),
        ("a: !!python/object/apply:os.getcwd []", "{file} is not valid YAML: could not determine a constructor"),
    ],
)
def test_a_file_that_holds_no_settings(content: str, told: str, tmp_path: Path) -> None:
    file = write(tmp_path, content)
    (mistake,) = mistakes(env={"SLOTMESH_CONFIG": file})
    assert mistake.startswith("--config: " + told.format(file=file))
    assert mistake.endswith("(from SLOTMESH_CONFIG)")


def test_what_is_required_is_asked_for() -> None:
    with pytest.raises(SettingsError, match=r"^--handler: required; give --handler TEXT or SLOTMESH_HANDLER$"):
        Needy.parse([], {}, prog="needy")
    with pytest.raises(SettingsError, match=r"^--handler: needs text$"):
        Needy.parse(["--handler"], {}, prog="needy")
    with pytest.raises(SettingsError) as caught:
        Needy.parse(["--config", "/nowhere"], {}, prog="needy")
    (mistake,) = caught.value.errors  # not that it is missing: it may have been in there
    assert mistake.startswith("--config: /nowhere cannot be read")


def test_a_number_of_the_file_is_no_switch(tmp_path: Path) -> None:
    file = write(tmp_path, "max_queued: true")
    assert mistakes(["--config", file]) == [
        f"--max-queued: expected a whole number >= 1, got 'true' (from {file}: max_queued)"
    ]


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        Example().name = "other"  # that is the point


def test_load_prints_mistakes_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Example.load(["--share", "x", "--wait", "y"], {}, prog="example")
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(":")[0] for line in err.splitlines()] == ["--share", "--wait"]


def test_load_reads_what_the_process_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["example", "--name", "flag"])
    monkeypatch.setenv("SLOTMESH_SHARE", "0.25")
    settings = Example.load(prog="example")
    assert (settings.name, settings.share) == ("flag", 0.25)


def test_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Example.load(["--help"], {}, prog="python -m example")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "usage: python -m example" in text
    assert "--max-queued N Calls that may wait, at 100% load. (default: 20000, env SLOTMESH_MAX_QUEUED)" in text
    assert "--wait DURATION Time in the queue. (default: 30s, env SLOTMESH_WAIT)" in text
    assert "--launcher {process,external}" in text
    assert "--controller HOST:PORT Where the controller is. (default: none, env SLOTMESH_CONTROLLER)" in text
    for name, field in Example.model_fields.items():
        assert f"--{name.replace('_', '-')} " in text
        assert field.description is not None
        assert field.description in text
    assert "--config FILE" in text


# -- what all services have in common ----------------------------------------------------------------------------


def test_off_loopback_is_refused_for_every_host_at_once() -> None:
    env = {"SLOTMESH_HOST": "0.0.0.0", "SLOTMESH_METRICS_HOST": "::"}
    with pytest.raises(SettingsError) as caught:
        ServiceSettings.parse([], env, prog="p")
    host, metrics_host = caught.value.errors
    assert host.startswith("--host: 0.0.0.0 can be reached from other machines")
    assert "--insecure (SLOTMESH_INSECURE=true)" in host
    assert metrics_host.startswith("--metrics-host: :: can be reached")
    assert ServiceSettings.parse(["--insecure"], env, prog="p").host == "0.0.0.0"


def test_a_descriptor_is_not_told_by_environment_or_file(tmp_path: Path) -> None:
    assert ServiceSettings.parse([], {"SLOTMESH_PARENT_FD": "3"}, prog="p").parent_fd is None
    assert ServiceSettings.parse(["--parent-fd", "3"], {}, prog="p").parent_fd == 3
    with pytest.raises(SettingsError, match="announce_fd: no such setting"):
        ServiceSettings.parse(["--config", write(tmp_path, "announce_fd: 3")], {}, prog="p")
