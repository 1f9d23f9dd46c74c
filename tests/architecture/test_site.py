"""The site as a reader gets it: links lead somewhere, nothing is fetched from elsewhere, pictures match the code."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images"
FETCHING = {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"}
"""Elements that make a browser fetch something; a plain link waits for the reader."""


class Reference(NamedTuple):
    """What an element points to."""

    element: str
    target: str


class SitePage(HTMLParser):
    """References and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.references: list[Reference] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for every element."""
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.references += [Reference(tag, given[name]) for name in ("href", "src", "data") if name in given]


def build(place: Path) -> Path:
    """The site, built as by `make docs`."""
    strictly = ["-q", "-W", "-n", "--keep-going", "-c", str(ROOT / "docs" / "site"), "-d", str(place / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *strictly, str(ROOT), str(place / "html")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return place / "html"


def broken_links(pages: dict[Path, SitePage]) -> list[str]:
    broken = []
    for path, page in pages.items():
        for _, target in page.references:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages[file].anchors | {""} if file in pages else {parts.fragment}
            if not file.exists() or unquote(parts.fragment) not in known:
                broken.append(f"{path.name}: {target}")
    return broken


def fetched_from_elsewhere(pages: dict[Path, SitePage], site: Path) -> list[str]:
    by_pages = [
        f"{path.name}: {target}"
        for path, page in pages.items()
        for element, target in page.references
        if element in FETCHING and (urlsplit(target).scheme not in ("", "data") or target.startswith("//"))
    ]
    styles = [*site.rglob("*.css"), *site.rglob("*.svg")]
    return by_pages + [path.name for path in styles if re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text())]


def test_the_site_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    site = build(tmp_path)
    pages = {path: SitePage(path) for path in sorted(site.rglob("*.html"))}
    expected = {path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    index = (site / "searchindex.js").read_text(encoding="utf-8")

    assert expected - {path.relative_to(site) for path in pages} == set()
    assert (site / "index.html") in pages
    assert broken_links(pages) == []
    assert fetched_from_elsewhere(pages, site) == []
    # The index of the search is a script: a page that is read from a disk may not fetch data.
    assert index.startswith("Search.setIndex(")
    assert '"docs/reference/glossary"' in index


def test_a_broken_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<p id="here"><a href="#here">a</a><a href="#gone">b</a><a href="gone.html">c</a></p>')

    assert broken_links({page: SitePage(page)}) == ["page.html: #gone", "page.html: gone.html"]


def test_the_pictures_are_drawn_from_the_tables(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "diagrams.py", tmp_path], check=True)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {name: (PICTURES / name).read_text(encoding="utf-8") for name in drawn if (PICTURES / name).exists()}

    assert len(drawn) == 5
    assert [name for name, text in drawn.items() if kept.get(name) != text] == [], "make diagrams"
