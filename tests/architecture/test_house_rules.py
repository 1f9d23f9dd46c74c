"""Rules about the files themselves, checked because what is not checked drifts."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
# Put together here, so that this file does not break its own rules.
OUTSIDE = "../" + "shared"
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME)\b")
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
# The field has a word for what each of them stands for: maintenance, adapter, collector, overview.
METAPHORS = {"upkeep", "glue", "plumbing", "machinery", "magic", "brain", "janitor", "house"}
NAMES_WITH_A_REASON = {
    "src/holdfast/testing.py": "a public name, and the usual one for a kit of tests",
    "src/holdfast/web/change_ring.py": "a ring buffer, no gerund",
    "src/holdfast/cli/house.py": "the house is what users see under that name: on the page, in `top` and in the API",
    "src/holdfast/web/house.py": "as above",
    "src/holdfast/web/page/house.py": "as above",
}
ASSERTING_CALLS = re.compile(r"^(assert|expect|check|raises|warns|fail|run_state_machine_as_test)")


def repository_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def texts() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_bytes().decode("utf-8", errors="replace") for path in repository_files()
    }


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def asserts_something(function: ast.AST) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if ASSERTING_CALLS.match(name):
                return True
    return False


def test_no_file_points_outside_the_repository() -> None:
    assert [name for name, text in texts().items() if OUTSIDE in text] == []


def test_nothing_is_left_to_be_done_later() -> None:
    assert [name for name, text in texts().items() if UNFINISHED.search(text)] == []


def test_names_of_files_say_what_is_in_them() -> None:
    assert [str(path) for path in SOURCES if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES] == []


def test_files_are_nouns_and_neither_gerunds_nor_metaphors() -> None:
    offenders = [path for path in SOURCES if path.stem.endswith("ing") or METAPHORS & set(path.stem.split("_"))]

    assert relative(offenders) == sorted(NAMES_WITH_A_REASON)


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert len(homes) > 500
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_every_module_states_its_promise() -> None:
    silent = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]

    assert relative(silent) == []


def test_no_test_asserts_nothing() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if not asserts_something(node)
    ]

    assert silent == []
