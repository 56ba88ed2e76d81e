"""Runs the compose file on a real engine, under load.

python -m tests.compose [PART ...]

Takes the engine that answers, with images of its registry; where none does, and this is root on Debian or one of its
children, it starts one of its own, and makes the images of the distribution's packages.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from tests.compose import by_tls, images, own_code, readme, scenario
from tests.compose.engine import NoEngine, answers, own_engine
from tests.compose.project import APP, FILE, SERVICES, TLS, ComposeProject, compose_commands, history_folder
from tests.support.mesh import ROOT

CANNOT: Final = 3
"""Exit status where there is no engine, and none can be started."""
FETCHED: Final = ROOT / ".compose-test"
"""What is fetched once."""
PARTS: Final = ("load", "app", "readme", "tls")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=__doc__.partition("\n")[0])
    parser.add_argument("--where-possible", action="store_true", help="exit with 0 where there can be no engine")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them without")
    arguments = parser.parse_args()
    if unknown := {*arguments.parts} - {*PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    folder = Path(tempfile.mkdtemp(prefix="slotmesh-compose-"))
    try:
        with ExitStack() as stack:
            has_engine = answers()
            if has_engine and images.can_pull():
                _say("an engine answers, and has a registry")
                variables = images.pull_images()
            else:
                _say(
                    "images are made of the distribution's packages: " + ("no registry" if has_engine else "no engine")
                )
                FETCHED.mkdir(exist_ok=True)
                images.fetch_parts(FETCHED)
                if not has_engine:
                    stack.enter_context(own_engine(folder))
                variables = images.build_images(FETCHED)
            commands = compose_commands()
            if not commands:
                raise NoEngine("there is neither `docker compose` nor docker-compose")
            for version, command in commands.items():
                _say(f"compose {version}")
                for part in arguments.parts or PARTS:
                    asyncio.run(_run(part, command, f"slotmesh-test-{version}-{part}", variables, folder / version))
    except NoEngine as why:
        _say(f"NOT RUN, so docker-compose.yml is not tested here: {why}")
        return 0 if arguments.where_possible else CANNOT
    except AssertionError as error:
        _say(f"FAILED: {error}\n(what happened: {folder})")
        return 1
    _say("everything holds")
    return 0


async def _run(part: str, command: Sequence[str], name: str, variables: Mapping[str, str], folder: Path) -> None:
    match part:
        case "load":
            history = history_folder(folder)
            project = _project_under_load(ComposeProject(command, name, variables), history)
            async with _logged(project):
                await scenario.run(project, history)
        case "app":
            async with _logged(ComposeProject(command, name, variables, (FILE, APP))) as project:
                await own_code.run(project)
        case "readme":
            async with _logged(ComposeProject(command, name, variables, (FILE,))) as project:
                await readme.run(project)
        case "tls":
            async with _logged(ComposeProject(command, name, variables, (FILE, TLS), by_tls.SERVICES)) as project:
                await by_tls.run(project)
        case _:
            raise ValueError(f"no such part: {part}")


def _project_under_load(project: ComposeProject, history: Path) -> ComposeProject:
    """With the handler of the session tests, which writes `history`, and with Prometheus."""
    project.variables = {
        **project.variables,
        "LEDGER_MESH": str(ROOT / "tests" / "compose" / "mesh.yaml"),
        "LEDGER_TESTS": str(ROOT / "tests"),
        "LEDGER_HISTORY": str(history),
    }
    if images.has_prometheus(project.variables):
        project.services = (*SERVICES, scenario.PROMETHEUS)
    else:
        _say("NOT TESTED: there is no Prometheus for the profile (Debian: prometheus)")
    return project


@asynccontextmanager
async def _logged(project: ComposeProject) -> AsyncIterator[ComposeProject]:
    """Takes the project down in the end; what its services said is printed where something failed."""
    try:
        yield project
    except BaseException:
        _say(await project.logs())
        raise
    finally:
        await project.down()


def _say(text: str) -> None:
    sys.stdout.write(f"compose-test: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
