"""Writes the table of a backend's settings into docs/configuration.md, or checks that it is what it should be.

The table follows from the declarations in slotmesh/spec/model.py, and those of the sections that it names: names,
defaults, bounds, and what stands below each field. Nothing is imported for that but the model itself.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from slotmesh.spec.model import DOCUMENT_SETTINGS, Backend
from slotmesh.spec.setting import Change, Setting, SettingKind, choices

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "configuration.md"
BEGIN: Final = "<!-- written by tools/generate_settings_table.py -->\n"
END: Final = "<!-- end of what is written -->\n"
_CHANGES: Final = {
    Change.TAKEN_OVER: "",
    Change.GIVEN_TO_HANDLERS: " A change replaces replicas, unless their handler has a `reconfigure`.",
    Change.REPLACES: " A change replaces replicas.",
}


def meanings(model: type[Any]) -> dict[str, str]:
    """Attribute -> what is said below it."""
    (declared,) = (
        node
        for node in ast.parse(Path(inspect.getfile(model)).read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == model.__name__
    )
    found: dict[str, str] = {}
    for field, below in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def table() -> str:
    """The table, as Markdown."""
    head = "| setting | default | meaning |\n|---|---|---|\n"
    return "".join([head, *_rows(Backend, DOCUMENT_SETTINGS, "")])


def _rows(model: type[Any], settings: Mapping[str, Setting], path: str) -> Iterator[str]:
    """A row for each setting, and behind a section those of its settings."""
    meaning = meanings(model)
    for name, each in settings.items():
        cells = (f"`{path}{name}`", _default(each), meaning[each.attribute] + _choices(each) + _CHANGES[each.change])
        yield f"| {' | '.join(cells)} |\n"
        if each.section is not None:
            yield from _rows(each.section, each.settings, f"{path}{name}.")


def _default(setting: Setting) -> str:
    if setting.default is None or setting.default == "":
        return "unset"
    is_map = setting.kind in {SettingKind.JSON, SettingKind.ENVIRONMENT, SettingKind.AMOUNTS}
    return "`{}`" if is_map else _written(setting, setting.default)


def _choices(setting: Setting) -> str:
    """The names to choose from, or the form. Bounds of numbers are in the messages about them."""
    if setting.kind is SettingKind.HANDLER:
        return " As `MODULE:NAME`."
    if setting.kind is not SettingKind.CHOICE:
        return ""
    return f" One of {', '.join(f'`{each}`' for each in choices(setting))}."


def _written(setting: Setting, value: Any) -> str:
    """A value as people write it."""
    match setting.kind:
        case SettingKind.CHOICE:
            return f"`{value.name.lower()}`"
        case SettingKind.BALANCER:
            return f"`{value}`"
        case SettingKind.DURATION:
            return f"{value * 1e3:g}ms" if 0 < value < 1 else f"{value:,.0f}s"
        case SettingKind.SIZE:
            return next((f"{value // 2**bits}{unit}" for bits, unit in _UNITS if value >= 2**bits), f"{value}B")
        case SettingKind.NUMBER:
            return f"{value:,.12g}"
        case _:
            return f"{value:,}"


_UNITS: Final = ((30, "GiB"), (20, "MiB"), (10, "KiB"))


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the table is stale")
    arguments = parser.parse_args()

    text = DOCUMENT.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        print(f"{DOCUMENT.name} lacks the lines between which the table stands", file=sys.stderr)
        return 2
    fresh = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if arguments.check and fresh != text:
        sys.stderr.writelines(
            difflib.unified_diff(text.splitlines(True), fresh.splitlines(True), DOCUMENT.name, "fresh")
        )
        print("The table of settings is not what slotmesh/spec/model.py says: run `make format`.", file=sys.stderr)
        return 1
    if fresh != text:
        DOCUMENT.write_text(fresh, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
