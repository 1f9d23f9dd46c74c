"""SQL kept in .sql files: one name, one reason and one statement each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

_HEADER = re.compile(r"^-- name: (?P<name>[a-z_]+)$", re.MULTILINE)


@cache
def load_statements(package: str, file: str = "queries.sql") -> Mapping[str, str]:
    """name → statement, without the comment lines that give its reason."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    return dict(_split(text))


def _split(text: str) -> Iterator[tuple[str, str]]:
    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        body = text[header.end() : following.start() if following else len(text)]
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        yield header["name"], "\n".join(lines).strip().rstrip(";")
