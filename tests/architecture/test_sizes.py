"""Modules and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULE_LINES = 500
FUNCTION_LINES = 60


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT / "src")) for path in paths]


def test_there_are_sources_to_measure() -> None:
    assert any(path.name == "states.py" for path in SOURCES)


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_a_module_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_its_functions_are_short(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    long = {
        node.name: length
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    }

    assert long == {}
