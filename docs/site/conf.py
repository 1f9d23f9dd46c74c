"""The site: the Markdown of the repository as it is and where it is. `make docs` builds it; a warning is an error.

The root of the repository is the source, so that a link holds in the site exactly if it holds in a checkout. A link to
a file that is no page, such as a test, takes a copy of the file along. The navigation is the index, docs/README.md: a
page is listed there and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
INDEX = "docs/README"

project = html_title = "Holdfast"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/**README.md"]
highlight_language = "text"
myst_heading_anchors = 4

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["index.html"]
html_favicon = "../images/anchor.svg"
html_copy_source = False
html_use_index = False
html_show_copyright = False

SECTION = re.compile(r"^## (?P<title>.+)$\n(?P<body>[\s\S]*?)(?=^## |\Z)", re.MULTILINE)
ENTRY = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<path>[^)#]+)\.md\)")


def navigation() -> str:
    """The index as tables of contents: a section is a caption, a link an entry."""
    lines = ["", "```{toctree}", ":hidden:", "", f"All pages <{INDEX}>", "```"]
    for section in SECTION.finditer((ROOT / f"{INDEX}.md").read_text(encoding="utf-8")):
        lines += ["", "```{toctree}", ":hidden:", f":caption: {section['title']}", ""]
        for each in ENTRY.finditer(section["body"]):
            title = each["title"] if "." in each["title"] else each["title"][0].upper() + each["title"][1:]
            lines.append(f"{title} <docs/{each['path']}>")
        lines.append("```")
    return "\n".join(lines) + "\n"


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """The tables of contents belong to the first page."""
    if page == root_doc:
        source[0] += navigation()


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
