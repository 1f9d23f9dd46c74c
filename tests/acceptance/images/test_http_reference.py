"""The reference of the image routes cannot drift: page and document are those of the table of routes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast_images.settings import Settings
from holdfast_images.web import image_extension
from holdfast_images.web.reference import reference

DOCS = Path(__file__).parents[3] / "docs" / "reference"
MARK = "<!-- generated: python -m holdfast_images.web.reference -->\n\n"


def test_the_page_is_the_table_of_routes() -> None:
    _, _, generated = (DOCS / "image-http-api.md").read_text(encoding="utf-8").partition(MARK)

    assert generated.strip() == reference().strip()


def test_the_installed_command_prints_the_document(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast_images.cli", "--state", str(tmp_path), "api", "spec"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    assert printed == (DOCS / "image-openapi.json").read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == []


def test_no_image_route_hides_an_image() -> None:
    routes = image_extension("state", Settings()).routes
    words = [route.path.split("/") for route in routes if route.path.startswith(("/v1/images/", "/v1/snapshots/"))]

    assert {parts[3] for parts in words} == {"{image_id}", "{snapshot}"}
