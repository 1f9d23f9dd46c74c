"""SQL kept in .sql files: one name, one reason and one statement each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

_HEADER = re.compile(r"^-- name: (?P<name>[a-z_]+)$", re.MULTILINE)


@cache
def load_statements(package: str, file: str = "queries.sql") -> Mapping[str, str]:
    """name → statement, without the comment lines that give its reason."""
    text = _folder(package).joinpath(file).read_text(encoding="utf-8")
    return dict(_split(text))


def _split(text: str) -> Iterator[tuple[str, str]]:
    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        body = text[header.end() : following.start() if following else len(text)]
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        yield header["name"], "\n".join(lines).strip().rstrip(";")


def _folder(package: str) -> Path:
    # Not by importlib.resources, which takes as long to import as the store itself.
    return Path(import_module(package).__path__[0])
