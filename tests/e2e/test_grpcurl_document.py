"""docs/grpcurl.md: every rpc has an example there, and each example prints what the document says, with real tools."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from grpc_channelz.v1 import channelz_pb2
from grpc_health.v1 import health_pb2

import slotmesh.inference
import slotmesh.v1
from tests.support.certificates import Authority
from tests.support.console import Command, commands_of
from tests.support.grpc_tools import Terminal, need_tools
from tests.support.mesh import ROOT, MeshRun, started_mesh
from tests.support.snippets import snippets_of

DOCUMENT = ROOT / "docs" / "grpcurl.md"
SNIPPETS = snippets_of(DOCUMENT)
CHANNELZ, BY_TLS = "channelz", "By TLS"
OTHERS = (CHANNELZ, BY_TLS)
"""Sections whose mesh has that setting."""


def rpcs() -> Iterator[str]:
    """Every rpc of every service that servers of the mesh have, but for the reflection that tools themselves ask."""
    modules = [
        importlib.import_module(f"{package.__name__}.{each.name}")
        for package in (slotmesh.v1, slotmesh.inference)
        for each in pkgutil.iter_modules(package.__path__)
    ]
    files = [each.DESCRIPTOR for each in modules if hasattr(each, "DESCRIPTOR")]
    for file in (*files, health_pb2.DESCRIPTOR, channelz_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            yield from (f"{service.full_name}/{method.name}" for method in service.methods)
    yield "grpc.health.v1.Health/List"


def commands(section: str = "") -> list[Command]:
    """Of one of the sections of another mesh, or of all that are none."""
    return [
        command
        for snippet in SNIPPETS
        if snippet.language == "console" and (snippet.section if snippet.section in OTHERS else "") == section
        for command in commands_of(snippet)
    ]


async def run_all(examples: Sequence[Command], mesh: MeshRun, folder: Path | None = None) -> None:
    """Runs them in order. The addresses that documents have are those that servers have by default."""
    terminal = Terminal({"localhost:7071": mesh.router_address, "localhost:7070": mesh.controller_address}, folder)
    for command in examples:
        output = await terminal.run(command)
        assert command.explains(output), f"{command.place}: {command.text}\nprints\n{output}\nand not\n{command.shown}"


@pytest.mark.parametrize("rpc", sorted(set(rpcs())))
def test_every_rpc_has_an_example(rpc: str) -> None:
    everything = [*commands(), *commands(CHANNELZ)]
    service, _, method = rpc.partition("/")
    wanted = re.compile(rf"grpcurl [^|]*{re.escape(service)}/{method}\b", re.DOTALL)
    assert any(wanted.match(each.text) and each.shown for each in everything), (
        f"docs/grpcurl.md shows no call of {rpc}: add one, with its output, to the section of its service"
    )


def test_everything_that_is_shown_is_run() -> None:
    assert {each.language for each in SNIPPETS} == {"python", "console"}
    assert all(each.shown for section in ("", *OTHERS) for each in commands(section))


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("section", ["", *OTHERS])
async def test_each_example_prints_what_the_document_says(section: str, tmp_path: Path) -> None:
    need_tools()
    (handler,) = (each.text for each in SNIPPETS if each.language == "python")
    (tmp_path / "greeter.py").write_text(handler, "utf-8")
    environment = {"SLOTMESH_CHANNELZ": "true" if section == CHANNELZ else "false"}
    certificates = Authority(tmp_path / "certs", "slotmesh.local").whole_mesh()
    flags = [f"--tls-dir={certificates}"] if section == BY_TLS else []
    async with started_mesh("greeter:Greeter", cwd=tmp_path, env=environment, flags=flags) as mesh:
        await run_all(commands(section), mesh, tmp_path)


REFUSED = {
    "slotmesh.v1.ControllerService/AdoptState": "no member knows a newer state",
    "slotmesh.v1.ControllerService/ForgetReplica": "is not forgotten",
}
"""Examples that a healthy mesh refuses."""


def examples_of_comments() -> dict[str, str]:
    """The examples in the comments of the protos, by rpc."""
    found: dict[str, str] = {}
    for proto in sorted((ROOT / "protos" / "slotmesh" / "v1").glob("*.proto")):
        text = proto.read_text("utf-8")
        for service, body in re.findall(r"^service (\w+) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
            for comment, rpc in re.findall(r"((?:^  //.*\n)+)^  rpc (\w+)\(", body, re.MULTILINE):
                _, is_there, example = comment.partition("  // Example:\n")
                if is_there:
                    found[f"slotmesh.v1.{service}/{rpc}"] = re.sub(r"^  // ?", "", example, flags=re.MULTILINE).strip()
    return found


def test_comments_of_rpcs_have_examples() -> None:
    assert {rpc for rpc in rpcs() if rpc.startswith("slotmesh.v1.")} == examples_of_comments().keys()
    for rpc, example in examples_of_comments().items():
        assert example.startswith("grpcurl "), rpc
        assert example.endswith(rpc)


@pytest.mark.long
@pytest.mark.asyncio
async def test_each_example_of_a_comment_works(tmp_path: Path) -> None:
    """Each example with a slot is preceded by that of ReserveSlot."""
    need_tools()
    (handler,) = (each.text for each in SNIPPETS if each.language == "python")
    (tmp_path / "greeter.py").write_text(handler, "utf-8")
    examples = examples_of_comments()
    reserve = examples["slotmesh.v1.SlotService/ReserveSlot"]
    async with started_mesh("greeter:Greeter", cwd=tmp_path) as mesh:
        terminal = Terminal({"localhost:7071": mesh.router_address, "localhost:7070": mesh.controller_address})
        for rpc, example in sorted(examples.items(), key=lambda it: "Controller" in it[0]):  # the others need Greeter
            for text in [reserve, example] if "$TOKEN" in example else [example]:
                output = await terminal.run(Command("", text, ""))
                is_endless = "-max-time" in text and "DeadlineExceeded" in output
                is_refused = rpc in REFUSED and REFUSED[rpc] in output
                assert is_endless or is_refused or output.startswith("{"), f"{rpc}: {text}\nprints\n{output}"
                assert '"failed"' not in output, rpc
                assert '"rejected"' not in output, rpc


@pytest.mark.long
@pytest.mark.asyncio
async def test_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    """The lines of README.md, on the mesh of its handler."""
    need_tools()
    readme = ROOT / "README.md"
    (handler,) = (each.text for each in snippets_of(readme) if each.text.startswith("# greeter.py"))
    (tmp_path / "greeter.py").write_text(handler, "utf-8")
    shown = [each for each in snippets_of(readme) if each.text.startswith("$ grpcurl")]
    examples = [command for each in shown for command in commands_of(each)]
    assert examples
    async with started_mesh("greeter:Greeter", cwd=tmp_path) as mesh:
        await run_all(examples, mesh)
