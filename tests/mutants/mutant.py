"""One defect: a text of the product, what stands there instead, and the tests that must fail then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.arch.sources import ROOT


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect. The text is searched in a whole package, so that it survives a move from file to file."""

    name: str
    """What is wrong, in the words of a change log."""
    package: str
    """The folder within which the text stands exactly once."""
    text: str
    """One expression or statement."""
    instead: str
    tests: tuple[str, ...]
    """Files and folders of tests, of which at least one test must fail."""

    def places(self, root: Path = ROOT) -> list[Path]:
        """The files in which the text stands, once for each time that it does."""
        return [
            path
            for path in sorted((root / self.package).rglob("*.py"))
            for _ in range(path.read_text("utf-8").count(self.text))
        ]

    def apply(self, root: Path) -> Path:
        """Writes the defect into a copy of the repository; returns the file, to be written back by `revert`.

        Raises:
            ValueError: the text does not stand there exactly once.
        """
        places = self.places(root)
        if len(places) != 1:
            raise ValueError(f"stands {len(places)} times in {self.package}: {self.text!r}")
        (path,) = places
        path.write_text(path.read_text("utf-8").replace(self.text, self.instead), "utf-8")
        return path


def mutant(name: str, package: str, text: str, instead: str, tests: str) -> Mutant:
    """`tests`: files and folders, with blanks between."""
    return Mutant(name, package, text, instead, tuple(tests.split()))
