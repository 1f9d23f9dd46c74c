"""The reference of the HTTP API cannot drift: page, document and codes are those of the table of routes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast import errors
from holdfast.web.application import api_routes
from holdfast.web.openapi import REQUEST_HEADERS, RESPONSE_HEADERS, document
from holdfast.web.problems import REFUSALS, code_of, status_of
from holdfast.web.reference import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference"
SOURCES = [*(ROOT / "src" / "holdfast" / "web").rglob("*.py"), *(ROOT / "src" / "holdfast_images").rglob("*.py")]


def refusals() -> dict[str, set[int]]:
    """Every code that is raised as Refused(status, code, ...) somewhere, with its statuses."""
    found: dict[str, set[int]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ("Refused", "problem"):
                continue
            values = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            if len(values) == 2 and isinstance(values[0], int):
                found.setdefault(str(values[1]), set()).add(values[0])
    return found


def test_the_page_is_the_table_of_routes() -> None:
    text = (DOCS / "http-api.md").read_text(encoding="utf-8")
    _, _, generated = text.partition("<!-- generated: python -m holdfast.web.reference -->\n\n")

    assert generated.strip() == reference().strip()


def test_the_document_is_the_table_of_routes() -> None:
    kept = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))

    assert kept == json.loads(msgspec.json.encode(document(api_routes())))


def test_the_command_prints_the_document() -> None:
    command = [sys.executable, "-m", "holdfast.cli", "api", "spec"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert printed == (DOCS / "openapi.json").read_text(encoding="utf-8")


def test_every_refusal_has_its_line_and_its_status() -> None:
    assert refusals() == {code: {status} for code, (status, _) in REFUSALS.items()}


def test_every_error_has_a_code_of_its_own_and_a_status() -> None:
    kinds = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.HoldfastError)
    ]
    codes = [code_of(kind) for kind in kinds]

    assert len(set(codes) | set(REFUSALS)) == len(codes) + len(REFUSALS)
    assert {status_of(kind) // 100 for kind in kinds} <= {4, 5}


def test_a_new_error_has_the_status_of_its_family() -> None:
    class NewestError(errors.JobMovedOnError):
        """Nobody has thought of it yet."""

    assert (code_of(NewestError), status_of(NewestError)) == ("newest", 412)
    assert status_of(NewestError, {NewestError: 418}) == 418


def test_every_header_that_a_route_names_is_described() -> None:
    routes = api_routes()

    assert {name for route in routes for name in route.takes} <= set(REQUEST_HEADERS)
    assert {name for route in routes for name in route.gives} <= set(RESPONSE_HEADERS)
