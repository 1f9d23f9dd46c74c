"""Which tests are nearest to a function: those that enter it, the quickest of each kind first.

Nothing is listed by hand. Which files of tests may matter to a package follows from what they import, directly or
through conftest and support; which tests enter a function, from a run of these files under a tracer (entered.py).
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

QUICK_SUITES = ("unit", "contract", "hostile", "stateful", "architecture")
"""A file of theirs counts if it imports the package of the module at all."""
SLOW_SUITES = ("integration",)
"""A file of theirs counts if it imports the folder of the module, and few of the quick ones do."""
FEW = 5


class Seen(NamedTuple):
    """A test that passed."""

    name: str
    seconds: float
    functions: frozenset[str]

    @property
    def file(self) -> str:
        """Where it is."""
        return self.name.partition("::")[0]

    @property
    def sentence(self) -> str:
        """Its name without parameters."""
        return self.name.partition("[")[0]


@cache
def imported_names(file: Path) -> frozenset[str]:
    """The modules that a file imports, by their dotted names; of `from a import b` both a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return frozenset(names)


def _of_the_tests(tree: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        file = tree.joinpath(*name.split(".")).with_suffix(".py")
        if name.startswith("tests.") and file.exists():
            yield file


def _reach(tree: Path, test: Path) -> frozenset[str]:
    """What a file of tests imports, its conftest files and its support included."""
    waiting = [test, *(folder / "conftest.py" for folder in test.parents if folder.is_relative_to(tree / "tests"))]
    files: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in files and file.exists():
            files.add(file)
            waiting += _of_the_tests(tree, imported_names(file))
    return frozenset().union(*(imported_names(file) for file in files))


def _imports(names: Iterable[str], module: str) -> bool:
    return any(name == module or name.startswith(module + ".") for name in names)


def dotted(module: Path) -> str:
    """The name under which a file below src is imported."""
    return ".".join(module.with_suffix("").parts).removesuffix(".__init__")


def candidates(tree: Path, modules: Iterable[Path]) -> list[str]:
    """The files of tests that may enter one of these modules (paths below src)."""
    packages = {module.parts[0] for module in modules}
    folders = {dotted(module.parent) for module in modules}
    quick, slow = ([test for suite in suites for test in _files(tree, suite)] for suites in (QUICK_SUITES, SLOW_SUITES))
    found = [test for test in quick if any(_imports(_reach(tree, test), package) for package in packages)]
    for folder in folders:
        if sum(_imports(imported_names(test), folder) for test in quick) < FEW:
            found += [test for test in slow if _imports(imported_names(test), folder)]
    return sorted({str(test.relative_to(tree)) for test in found})


def _files(tree: Path, suite: str) -> list[Path]:
    return sorted((tree / "tests" / suite).rglob("test_*.py"))


class Records:
    """What was seen of the tests, kept between runs for the files of tests that did not change meanwhile."""

    def __init__(self, folder: Path, tree: Path, seed: int) -> None:
        source = hashlib.sha256(str(seed).encode())
        for module in sorted((tree / "src").rglob("*.py")):
            source.update(module.read_bytes())
        self.folder = folder / source.hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._tree = tree
        self._index = self.folder / "files.json"
        self._known: dict[str, str] = json.loads(self._index.read_text()) if self._index.exists() else {}

    def _digest(self, file: str) -> str:
        return hashlib.sha256((self._tree / file).read_bytes()).hexdigest()

    def missing(self, files: Iterable[str]) -> list[str]:
        """Those of the files that have to run first."""
        return [file for file in files if self._known.get(file) != self._digest(file)]

    def add(self, files: Iterable[str]) -> None:
        """These have run."""
        self._known |= {file: self._digest(file) for file in files}
        self._index.write_text(json.dumps(self._known))

    def tests_of(self, files: Iterable[str]) -> list[Seen]:
        """The tests of these files, as they were seen last."""
        wanted = frozenset(files)
        lines = [line for part in sorted(self.folder.glob("*.jsonl")) for line in part.read_text().splitlines()]
        seen = [Seen(name, seconds, frozenset(functions)) for name, seconds, functions in map(json.loads, lines)]
        return list({test.name: test for test in seen if test.file in wanted}.values())

    def forget(self, files: Iterable[str]) -> None:
        """Before they run again: a test that is no more must not be asked for."""
        gone = tuple(json.dumps([f"{file}::"])[:-2] for file in files)
        for part in self.folder.glob("*.jsonl"):
            lines = part.read_text().splitlines(keepends=True)
            part.write_text("".join(line for line in lines if not line.startswith(gone)))


class Nearest:
    """Answers which tests to run for a change."""

    def __init__(self, tests: list[Seen], tree: Path) -> None:
        self.tests = tests
        self._tree = tree

    def __call__(self, module: Path, function: int, rng: random.Random) -> list[Seen]:
        """All tests that enter the function, nearest first: one case of each test, then the other cases.

        What belongs to no function has run when the module was imported: every test that enters the module may notice,
        or, if there is nothing in it to be entered, every test in a file that imports it.
        """
        entering = [test for test in self.tests if f"{module}:{function}" in test.functions]
        if not entering and not function:
            entering = [test for test in self.tests if any(name.startswith(f"{module}:") for name in test.functions)]
        if not entering and not function:
            name = dotted(module)
            entering = [test for test in self.tests if name in imported_names(self._tree / test.file)]
        rng.shuffle(entering)
        entering.sort(key=lambda test: test.seconds)
        first: dict[str, Seen] = {}
        for test in entering:
            first.setdefault(test.sentence, test)
        chosen = {test.name for test in first.values()}
        return [*first.values(), *(test for test in entering if test.name not in chosen)]


def within(tests: Iterable[Seen], seconds: float) -> list[Seen]:
    """As many of the tests, in their order, as take so long together, and one at least; those that do not fit stay."""
    taken: list[Seen] = []
    for test in tests:
        if test.seconds <= seconds or not taken:
            seconds -= test.seconds
            taken.append(test)
    return taken
