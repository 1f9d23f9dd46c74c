"""Modules and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULE_LINES = 500
FUNCTION_LINES = 60


def test_every_module_is_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}

    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length > MODULE_LINES} == {}


def test_every_function_is_short() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert len(lengths) > 1000
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES} == {}
